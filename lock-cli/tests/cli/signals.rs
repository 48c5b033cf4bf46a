//! Signals: each of the list arrives, once.

use rustix::process::Signal;

use crate::support::{Said, Site, kill, until};

#[test]
fn each_signal_arrives_exactly_once() {
    let site = Site::new();
    let mut arguments = vec!["exec".to_owned(), "job".into(), "--".into()];
    arguments.extend(site.fixture("signals", "seen"));
    let mut wrapper = site.start(&arguments);
    until("the command is ready", || site.lines("seen") == ["ready"]);
    let sent = [
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
        (Signal::TSTP, "TSTP"),
        (Signal::CONT, "CONT"),
        (Signal::TERM, "TERM"),
    ];
    for (n, (signal, name)) in sent.iter().enumerate() {
        wrapper.signal(*signal);
        until(&format!("{name} arrives"), || {
            site.lines("seen").len() >= n + 2
        });
    }
    let said = wrapper.wait_with_output();
    assert_eq!(said.code(), 7, "the command's own code: {}", said.err());
    let mut expected = vec!["ready"];
    expected.extend(sent.iter().map(|(_, name)| *name));
    assert_eq!(site.lines("seen"), expected);
}

#[test]
fn a_signal_to_every_process_arrives_as_often_as_it_was_sent() {
    // What a service manager does that signals a whole control group.
    let site = Site::new();
    let mut arguments = vec!["exec".to_owned(), "job".into(), "--".into()];
    arguments.extend(site.fixture("signals", "seen"));
    let wrapper = site.start(&arguments);
    until("the command is ready", || site.lines("seen") == ["ready"]);
    for (pid, line) in site.processes() {
        if line.contains("__lockctl-keeper") {
            for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::TSTP] {
                kill(pid, signal);
            }
        }
    }
    let said = {
        let mut wrapper = wrapper;
        wrapper.signal(Signal::TERM);
        wrapper.wait_with_output()
    };
    assert_eq!(said.code(), 7, "{}", said.err());
    assert_eq!(
        site.lines("seen"),
        ["ready", "TERM"],
        "the keeper swallows its own"
    );
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let site = Site::new();
    let script = format!(
        "trap '' HUP; exec {} exec job -- sh -c 'grep SigIgn /proc/self/status'",
        env!("CARGO_BIN_EXE_lockctl")
    );
    let mut command = std::process::Command::new("sh");
    let said = command
        .args(["-c", &script])
        .env("LOCKCTL_STORE", site.url())
        .output()
        .expect("it runs");
    let out = said.out();
    let mask = out.split_whitespace().nth(1).expect("a mask");
    let mask = u64::from_str_radix(mask, 16).expect("hexadecimal");
    assert_eq!(mask & 1, 1, "nohup's SIGHUP is still ignored: {out}");
}
