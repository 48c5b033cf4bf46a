//! Every process that came from one: found through the kernel's process list.

use rustix::process::{Pid, Signal, getpgrp, getpid};

/// Sends a signal to all descendants of this process, whatever group or session they are in.
///
/// Where the system has no process list to read, this does nothing; the process group has been told.
pub(super) fn signal_descendants(signal: Signal) {
    for pid in descendants(&processes(), getpid().as_raw_pid()) {
        if let Some(pid) = Pid::from_raw(pid) {
            // It may have ended between the look and now.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// Whether no other process is in the process group of this one.
pub(super) fn alone_in_group() -> bool {
    let own = getpgrp().as_raw_pid();
    processes().iter().filter(|p| p.group == own).count() <= 1
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
}

fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
            process_in(pid, &stat)
        })
        .collect()
}

/// What a line of `/proc/PID/stat` says. The name in brackets may hold anything.
fn process_in(pid: i32, stat: &[u8]) -> Option<Process> {
    let after = stat.iter().rposition(|&b| b == b')')? + 1;
    let rest = std::str::from_utf8(&stat[after..]).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(1);
    Some(Process {
        pid,
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
    })
}

fn descendants(processes: &[Process], of: i32) -> Vec<i32> {
    let mut found = vec![of];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        next += 1;
        for child in processes.iter().filter(|p| p.parent == parent) {
            if !found.contains(&child.pid) {
                found.push(child.pid);
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
        let expected = Some(Process {
            pid: 12,
            parent: 7,
            group: 5,
        });
        assert_eq!(process_in(12, b"12 (a) S 7 5 12 0"), expected);
        assert_eq!(process_in(12, b"12 (a) S 9 (b) \xff) R 7 5 12"), expected);
        assert_eq!(process_in(12, b"12 broken"), None);
    }

    #[test]
    fn descendants_are_found_at_any_depth() {
        let list = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 4), (1, 0)].map(|(pid, parent)| Process {
            pid,
            parent,
            group: 0,
        });
        let mut found = descendants(&list, 2);
        found.sort_unstable();
        assert_eq!(found, [3, 4, 6]);
        assert!(descendants(&list, 6).is_empty());
    }
}
