//! Every process that came from one: found through the kernel's process list.

use rustix::process::{Pid, Signal, getpid};

/// Sends a signal to all descendants of this process, whatever group or session they are in.
///
/// Where the system has no process list to read, this does nothing; the process group has been told.
pub(super) fn signal_descendants(signal: Signal) {
    for pid in descendants(&parents(), getpid().as_raw_pid()) {
        if let Some(pid) = Pid::from_raw(pid) {
            // It may have ended between the look and now.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// Pairs of process and parent.
fn parents() -> Vec<(i32, i32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parent_in(&stat)?))
        })
        .collect()
}

/// The parent in a line of `/proc/PID/stat`. The name before it is in brackets and may hold anything.
fn parent_in(stat: &[u8]) -> Option<i32> {
    let after = stat.iter().rposition(|&b| b == b')')? + 1;
    let rest = std::str::from_utf8(&stat[after..]).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn descendants(parents: &[(i32, i32)], of: i32) -> Vec<i32> {
    let mut found = vec![of];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        next += 1;
        for &(pid, _) in parents.iter().filter(|(_, p)| *p == parent) {
            if !found.contains(&pid) {
                found.push(pid);
            }
        }
    }
    found.remove(0);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_hold_anything() {
        assert_eq!(parent_in(b"12 (a) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in(b"12 (a) S 9 (b) \xff) R 7 12"), Some(7));
        assert_eq!(parent_in(b"12 broken"), None);
    }

    #[test]
    fn descendants_are_found_at_any_depth() {
        let list = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 4), (1, 0)];
        let mut found = descendants(&list, 2);
        found.sort_unstable();
        assert_eq!(found, [3, 4, 6]);
        assert!(descendants(&list, 6).is_empty());
    }
}
