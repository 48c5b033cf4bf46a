//! The boot clock jumps, as after a suspend: `check()` and the timer must notice, although the
//! runtime's own timer does not.
//!
//! The process moves itself into a time namespace whose boot clock is a minute ahead. Only a process
//! with one thread may do that, so this is a program of its own and not a `#[test]`.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("SKIPPED boot_jump: time namespaces exist on Linux only");
}

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::{BufRead as _, BufReader};
    use std::os::fd::AsFd as _;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use lock_core::{LockProvider as _, LossReason, Provider, Timing};
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    /// A sleeping process in a namespace whose boot clock is ahead.
    struct Ahead(Child);

    impl Drop for Ahead {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn namespace_ahead() -> Result<(Ahead, File), String> {
        let child = Command::new("unshare")
            .args(["--time", "--boottime", "60", "--kill-child"])
            .args(["sh", "-c", "echo $$; exec sleep 60"])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|e| format!("unshare cannot be run: {e}"))?;
        let mut child = Ahead(child);
        let mut line = String::new();
        let out = child.0.stdout.take().ok_or("no output")?;
        BufReader::new(out)
            .read_line(&mut line)
            .map_err(|e| e.to_string())?;
        let pid: u32 = line
            .trim()
            .parse()
            .map_err(|_| "unshare was refused a time namespace".to_owned())?;
        let file = File::open(format!("/proc/{pid}/ns/time")).map_err(|e| e.to_string())?;
        Ok((child, file))
    }

    pub(super) fn main() {
        let (_sleeper, ahead) = match namespace_ahead() {
            Ok(found) => found,
            Err(why) => {
                println!("SKIPPED boot_jump: {why}");
                assert!(std::env::var_os("LOCK_TEST_REQUIRE").is_none(), "{why}");
                return;
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let timing = Timing::for_ttl(Duration::from_secs(30)).expect("valid");
            let provider = Provider::single_node().with_timing(timing);
            let asked = provider.acquire("asked").await.expect("granted");
            let watched = provider.acquire("watched").await.expect("granted");
            let lost = watched.leadership().clone();
            let timer = tokio::spawn(async move { lost.lost().await });
            tokio::task::yield_now().await;
            assert!(asked.check() && watched.check());

            move_into_link_name_space(ahead.as_fd(), Some(LinkNameSpaceType::Time))
                .expect("a process with one thread may change its time namespace");

            assert!(!asked.check(), "the first check after the jump");
            // The runtime's clock did not jump: this bound is on real time.
            let reason = tokio::time::timeout(Duration::from_secs(2), timer)
                .await
                .expect("the timer notices")
                .expect("the task has not panicked");
            assert!(matches!(reason, LossReason::Expired { .. }), "{reason:?}");
            assert!(!watched.check());
        });
        println!("test the_boot_clock_jumps ... ok");
        println!(
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s"
        );
    }
}
