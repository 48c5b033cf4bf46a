//! I. Names, keys, encodings, identity.

use lock_core::{Claim, LockName, Metadata, Release};

use crate::candidate::Election;
use crate::cx::{Cx, SOON, claim, denied, ensure, granted, holder, name, owner, renewed};
use crate::harness::Answer;
use crate::history::Bounds;

/// Holds each name at once: they must not meet, and come back as they were.
async fn all_independent(cx: &Cx, names: &[&str]) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let ttl = cx.long(store.as_ref());
    let mut leases = Vec::new();
    for text in names {
        let lease = granted(store.as_ref(), &claim(&name(text), ttl)).await;
        match lease {
            Ok(lease) => leases.push(lease),
            Err(stop) => ensure!(false, "{text:?} meets another name: {stop}"),
        }
    }
    for lease in &leases {
        let held = holder(other.as_ref(), lease.name()).await?;
        ensure!(
            held.token == lease.token(),
            "{:?} shows {held:?}",
            lease.name()
        );
        denied(other.as_ref(), &claim(lease.name(), ttl)).await?;
        renewed(store.as_ref(), lease).await?;
    }
    let listed = other.list("").await?;
    let mut expected: Vec<LockName> = names.iter().map(|n| name(n)).collect();
    expected.sort();
    let shown: Vec<LockName> = listed.into_iter().map(|o| o.name).collect();
    ensure!(
        shown == expected,
        "the list shows {shown:?} for {expected:?}"
    );
    for lease in &leases {
        let answer = store.release(lease).await?;
        ensure!(
            answer == Release::Released,
            "{:?}: {answer:?}",
            lease.name()
        );
    }
    Ok(())
}

pub(crate) async fn byte_for_byte(cx: Cx) -> Answer<()> {
    let names = [
        "job",
        "Job",
        "JOB",
        "jòb",
        "job ",
        " job",
        "ß",
        "ss",
        "\u{e9}",
        "e\u{301}",
        "😀",
        "😁",
        "\u{212a}",
        "k",
        "K",
        "İ",
        "i",
        "ı",
        "job\u{a0}",
        "job\u{200b}",
        "1",
        "01",
        "1.0",
        "null",
        "'",
        "\"",
        "`",
        "\\",
        "\\'",
        "%",
        "_",
        "$1",
        ":a",
        "--",
        ";",
    ];
    all_independent(&cx, &names).await
}

pub(crate) async fn long_names_do_not_collide(cx: Cx) -> Answer<()> {
    let mut names = Vec::new();
    for length in [1, 63, 64, 65, 191, 192, 193, 254, 255] {
        names.push("x".repeat(length));
    }
    names.push(format!("{}y", "x".repeat(254)));
    names.push("ä".repeat(33));
    names.push(format!("{}ö", "ä".repeat(126)));
    names.push(format!("{}ä", "ä".repeat(126)));
    names.push("😀".repeat(63));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    all_independent(&cx, &names).await
}

pub(crate) async fn hash_twins_are_independent(cx: Cx) -> Answer<()> {
    // CRC-32 twins; FNV-1a (32 bit) twins; twins of the hash h × 31 + byte.
    let names = [
        "plumless",
        "buckeroo",
        "costarring",
        "liquid",
        "declinate",
        "macallums",
        "Aa",
        "BB",
        "AaAa",
        "BBBB",
        "AaBB",
        "BBAa",
    ];
    all_independent(&cx, &names).await
}

pub(crate) async fn path_and_glob_characters(cx: Cx) -> Answer<()> {
    let names = [
        "/",
        "//",
        "a/b",
        "a//b",
        "a",
        "a/",
        "/a",
        ".",
        "..",
        "../a",
        "./a",
        "zookeeper",
        "%2F",
        "%2f",
        "%",
        "%%",
        "*",
        "?",
        "[a]",
        "a*",
        "a?",
        "{",
        "}",
        "{}",
        "}{",
        "a{b}c",
        "{a}{b}",
        ":",
        "a:b",
        "a:",
        "~",
        "#",
        "\u{feff}",
        "\u{fffd}",
    ];
    all_independent(&cx, &names).await
}

pub(crate) async fn the_owner_text_decides_nothing(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let ttl = cx.long(store.as_ref());
    let name = name("n");
    let texts = [
        "node-a",
        "NODE-A",
        "same",
        "same",
        " same ",
        "😀",
        "it's \"quoted\" \\ %s",
    ];
    let long = "o".repeat(255);
    let mut last: Option<Claim> = None;
    for text in texts.into_iter().chain([long.as_str()]) {
        let metadata = Metadata::new(format!("{text}\n\tat host:1'\"\\"))?;
        let mut mine = claim(&name, ttl).with_metadata(metadata.clone());
        mine.owner = owner(text);
        let lease = granted(store.as_ref(), &mine).await?;
        let held = holder(other.as_ref(), &name).await?;
        ensure!(
            held.owner == mine.owner,
            "the owner {text:?} came back as {held:?}"
        );
        ensure!(
            held.metadata == metadata,
            "the metadata came back as {held:?}"
        );
        // A twin with the same owner text is a stranger all the same.
        let mut twin = claim(&name, ttl);
        twin.owner = owner(text);
        denied(other.as_ref(), &twin).await?;
        denied(store.as_ref(), &twin).await?;
        store.withdraw(&twin).await?;
        renewed(store.as_ref(), &lease).await?;
        if let Some(last) = &last {
            store.withdraw(last).await?;
        }
        let answer = store.release(&lease).await?;
        ensure!(
            answer == Release::Released,
            "a twin took the lease of {text:?}"
        );
        last = Some(mine);
    }
    Ok(())
}

pub(crate) async fn one_identity_one_leader(cx: Cx) -> Answer<()> {
    let ttl = cx.brisk(cx.open().await?.as_ref());
    let election = Election::default();
    let first = election.start(&cx, 1, "n", ttl).await?;
    first.leads(SOON).await?;
    // Every candidate of an election has the same owner text.
    let second = election.start(&cx, 2, "n", ttl).await?;
    second.stands_by().await?;
    first.stop().await?;
    second.leads(ttl + SOON).await?;
    second.stop().await?;
    let wrong = election.recorder.violations(&Bounds::new(SOON, None));
    ensure!(wrong.is_empty(), "{}", wrong[0]);
    Ok(())
}
