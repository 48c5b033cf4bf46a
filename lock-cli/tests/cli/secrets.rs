//! No secret is printed, wherever it was put.

use crate::support::{Said, Site};

const SECRET: &str = "hunter2-s3cret";

#[test]
fn no_secret_is_ever_printed() {
    let site = Site::new();
    let urls = [
        format!("postgres://me:{SECRET}@127.0.0.1:1/db"),
        format!("redis://:{SECRET}@127.0.0.1:1/0"),
        format!("gopher://127.0.0.1/x?password={SECRET}"),
        format!("sqlite://me:{SECRET}@host/x.db"),
        format!("sqlite:/x.db?password={SECRET}"),
        format!("://{SECRET}@"),
        format!("postgres://me:{SECRET}"),
    ];
    let mut tried = 0;
    for url in &urls {
        for arguments in [
            vec!["status", "job"],
            vec!["status", "job", "-vvv"],
            vec!["exec", "job", "--no-wait", "-vv", "--", "true"],
            vec!["list", "--help"],
            vec!["exec", "--help"],
            vec![],
            vec!["frobnicate"],
        ] {
            let mut by_variable = site.lockctl(&arguments);
            let said = by_variable
                .env("LOCKCTL_STORE", url)
                .output()
                .expect("runs");
            let all = format!("{}{}", said.out(), said.err());
            assert!(!all.contains(SECRET), "{url} {arguments:?}: {all}");
            let mut by_argument = arguments.clone();
            by_argument.extend(["--store", url]);
            if !arguments.contains(&"--") {
                let said = site.run(&by_argument);
                let all = format!("{}{}", said.out(), said.err());
                assert!(!all.contains(SECRET), "{by_argument:?}: {all}");
            }
            tried += 1;
        }
        // In the place of something else, which the argument parser repeats.
        for arguments in [
            vec!["status", "job", "--ttl", url],
            vec!["exec", "job", "--ttl", url, "--", "true"],
            vec!["exec", "job", "--format", url, "--", "true"],
            vec!["exec", "job", "--drain", url, "--", "true"],
            vec![url.as_str()],
        ] {
            let said = site.run(&arguments);
            let all = format!("{}{}", said.out(), said.err());
            assert!(!all.contains(SECRET), "{arguments:?}: {all}");
            assert_eq!(said.code(), 64, "{all}");
        }
    }
    assert_eq!(tried, urls.len() * 7);
}

#[test]
fn the_command_and_the_keeper_do_not_know_the_store() {
    let site = Site::new();
    let url = format!("{}?table=lock_leases", site.url());
    let script = "tr '\\0' '\\n' </proc/$PPID/environ; tr '\\0' ' ' </proc/$PPID/cmdline; env";
    let mut command = site.lockctl(["exec", "job", "--", "sh", "-c", script]);
    let said = command.env("LOCKCTL_STORE", &url).output().expect("runs");
    assert_eq!(said.code(), 0, "{}", said.err());
    assert!(
        said.out().contains("LOCKCTL_TOKEN"),
        "the keeper's environment is readable"
    );
    assert!(!said.out().contains("locks.db"), "{}", said.out());
}
