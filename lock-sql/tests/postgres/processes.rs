//! This test binary again, as processes of their own.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};

use lock_core::{Attempt, LockPersistence as _, Release, Renewal};

use crate::support::{MINUTE, claim, granted, is_held, renew, store_at};

const ROLE: &str = "LOCK_SQL_POSTGRES_VICTIM";
const URL: &str = "LOCK_SQL_POSTGRES_VICTIM_URL";
const TABLE: &str = "LOCK_SQL_POSTGRES_VICTIM_TABLE";

/// Runs one role in this many processes at once, and answers what each has printed; all must end well.
pub(crate) async fn together(count: usize, role: &str, url: &str, table: &str) -> Vec<String> {
    let (role, url, table) = (role.to_owned(), url.to_owned(), table.to_owned());
    let run = move || {
        let mut children: Vec<Child> = (0..count)
            .map(|_| {
                Command::new(std::env::current_exe().unwrap())
                    .args([
                        "--exact",
                        "processes::victim",
                        "--nocapture",
                        "--test-threads=1",
                    ])
                    .env(ROLE, &role)
                    .env(URL, &url)
                    .env(TABLE, &table)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        // Each waits for the end of its input.
        for child in &mut children {
            drop(child.stdin.take());
        }
        children
            .into_iter()
            .map(|child| {
                let output = child.wait_with_output().unwrap();
                assert!(output.status.success(), "{role}: {}", output.status);
                String::from_utf8(output.stdout).unwrap()
            })
            .collect()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// Not a test by itself: what another test's process does, chosen by the environment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    let (Ok(role), Ok(url), Ok(table)) = (
        std::env::var(ROLE),
        std::env::var(URL),
        std::env::var(TABLE),
    ) else {
        return;
    };
    std::io::stdin().read_to_string(&mut String::new()).unwrap();
    match role.split_once(' ') {
        None if role == "prepare" => store_at(&url, &table).prepare().await.unwrap(),
        Some(("work", rounds)) => work(&url, &table, rounds.parse().unwrap()).await,
        _ => panic!("no such role: {role}"),
    }
}

/// Rounds of five calls or more, one name for itself and one for all.
async fn work(url: &str, table: &str, rounds: usize) {
    let store = store_at(url, table);
    let worker = std::process::id();
    let (mut wins, mut calls) = (0, 0);
    for round in 0..rounds {
        let own = granted(&store, &claim(&format!("w{worker}'\\ ä{round}"), MINUTE)).await;
        assert!(matches!(
            renew(&store, &own).await.unwrap(),
            Renewal::Renewed { .. }
        ));
        if let Attempt::Granted(lease) = store.try_acquire(&claim("shared", MINUTE)).await.unwrap()
        {
            wins += 1;
            assert!(is_held(&store, "shared").await);
            assert_eq!(store.release(&lease).await.unwrap(), Release::Released);
            calls += 2;
        }
        assert!(is_held(&store, own.name().as_str()).await);
        assert_eq!(store.release(&own).await.unwrap(), Release::Released);
        calls += 5;
    }
    // The runner has begun a line.
    println!("\nwins {wins}\ncalls {calls}");
}

/// The sum of the numbers after this word in what processes have printed.
pub(crate) fn sum(outputs: &[String], word: &str) -> usize {
    let numbers = outputs.iter().flat_map(|text| text.lines());
    let numbers = numbers.filter_map(|line| line.strip_prefix(word)?.trim().parse::<usize>().ok());
    numbers.sum()
}
