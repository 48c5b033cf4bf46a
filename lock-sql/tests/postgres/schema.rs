//! The table: made once, and refused when it cannot be used.

use conformance_tests::Tier;
use lock_core::{ErrorKind, LockPersistence as _};

use crate::processes::together;
use crate::support::{MINUTE, by_hand, claim, errors, fresh, granted, own, run, shared, store_at};

/// 78: sixteen processes start at once on an empty database, and the server's log stays clean.
#[tokio::test(flavor = "multi_thread")]
async fn sixteen_starts_at_once_make_one_table_and_no_error() {
    let Some(server) = own(&[]).await else { return };
    let rounds = match Tier::of_this_run() {
        Tier::Ci => 5,
        Tier::Full => 50,
    };
    for _ in 0..rounds {
        let table = fresh("p");
        together(16, "prepare", server.url(), &table).await;
        granted(&store_at(server.url(), &table), &claim("n", MINUTE)).await;
    }
    assert_eq!(errors(&server).await, Vec::<String>::new());
}

/// 79: what a user lacks is told with the statement that gives it.
#[tokio::test]
async fn missing_rights_are_told_with_the_statement_to_run() {
    let Some(server) = shared().await else { return };
    let mut admin = by_hand(&server).await;
    let role = fresh("r");
    run(&mut admin, &format!("CREATE ROLE {role} LOGIN")).await;
    let url = server.url().replace("postgres@", &format!("{role}@"));
    assert!(
        url.contains(&role),
        "the URL of the harness has another form"
    );

    let table = fresh("t");
    let store = store_at(&url, &table);
    let error = store.prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("CREATE TABLE IF NOT EXISTS") && text.contains("GRANT SELECT"),
        "{text}"
    );

    // What it says helps: run it word for word.
    let (_, statements) = text.split_once("have its owner run: ").unwrap();
    run(&mut admin, statements).await;
    store.prepare().await.unwrap();
    let lease = granted(&store, &claim("n", MINUTE)).await;

    run(&mut admin, &format!("REVOKE UPDATE ON {table} FROM {role}")).await;
    let error = crate::support::renew(&store, &lease).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(!error.is_indeterminate(), "{error:?}");
    let error = store.prepare().await.unwrap_err();
    let (_, grant) = error.message().split_once("run: ").unwrap();
    run(&mut admin, grant).await;
    crate::support::renew(&store, &lease).await.unwrap();
}

/// 79, 5: a table of another shape is refused at the start, and named.
#[tokio::test]
async fn another_table_is_refused() {
    let Some(server) = shared().await else { return };
    let mut admin = by_hand(&server).await;
    for (change, says) in [
        ("ALTER TABLE {} DROP COLUMN note", "note is missing"),
        (
            "ALTER TABLE {} ALTER expires TYPE timestamptz(0)",
            "expires is",
        ),
        (
            "ALTER TABLE {} ALTER owner DROP NOT NULL",
            "owner may be NULL",
        ),
        (
            "ALTER TABLE {} ALTER name TYPE text COLLATE \"en-x-icu\"",
            "compare bytes",
        ),
        ("ALTER TABLE {} ADD more int", "more"),
        ("ALTER TABLE {} SET UNLOGGED", "unlogged"),
        ("ALTER TABLE {} DROP CONSTRAINT {}_pkey", "no unique index"),
    ] {
        let table = fresh("t");
        let store = store_at(server.url(), &table);
        store.prepare().await.unwrap();
        run(&mut admin, &change.replace("{}", &table)).await;
        let error = store.prepare().await.expect_err(change);
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.message().contains(says), "{change}: {error}");
    }
    let table = fresh("t");
    run(
        &mut admin,
        &format!("CREATE VIEW {table} AS SELECT 1 AS name"),
    )
    .await;
    let error = store_at(server.url(), &table).prepare().await.unwrap_err();
    assert!(error.message().contains("view"), "{error}");
}

/// 63: without its table nobody is granted anything, and the error says what to do.
#[tokio::test]
async fn an_emptied_or_dropped_table_makes_no_second_leader() {
    let Some(server) = shared().await else { return };
    let (store, table) = crate::support::store(&server).await;
    let other = store_at(server.url(), &table);
    let mut admin = by_hand(&server).await;
    let lease = granted(&store, &claim("n", MINUTE)).await;
    run(&mut admin, &format!("DELETE FROM {table}")).await;
    assert_eq!(
        crate::support::renew(&store, &lease).await.unwrap(),
        lock_core::Renewal::Gone
    );
    let next = granted(&other, &claim("n", MINUTE)).await;
    assert!(next.token() > lease.token());
    run(&mut admin, &format!("DROP TABLE {table}")).await;
    let error = other.try_acquire(&claim("n", MINUTE)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(error.message().contains("CREATE TABLE"), "{error}");
    let error = crate::support::renew(&other, &next).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    other.prepare().await.unwrap();
    assert!(granted(&store, &claim("n", MINUTE)).await.token() > next.token());
}
