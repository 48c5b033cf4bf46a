//! Fenced transactions.

use std::time::Duration;

use lock_core::{Attempt, ErrorKind, LockPersistence as _, Renewal};
use lock_sql::sqlx::postgres::PgConnection;
use lock_sql::sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use lock_sql::{EarlyFence as _, Fence as _};

use crate::support::{
    MINUTE, by_hand, claim, eventually, fresh, granted, is_held, number, renew, run, shared, store,
    store_at,
};

async fn ledger(connection: &mut PgConnection) -> String {
    let table = fresh("ledger");
    run(connection, &format!("CREATE TABLE {table} (n bigint)")).await;
    table
}

/// Only the holder commits, at every isolation level, and also after a renewal that the transaction has
/// not seen.
#[tokio::test]
async fn only_the_holder_commits() {
    let Some(server) = shared().await else { return };
    let (store, table) = store(&server).await;
    let other = store_at(server.url(), &table);
    let mut app = by_hand(&server).await;
    let ledger = ledger(&mut app).await;
    let insert = format!("INSERT INTO {ledger} VALUES (1)");
    let count = format!("SELECT count(*) FROM {ledger}");
    for (n, isolation) in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
        .iter()
        .enumerate()
    {
        let begin = format!("BEGIN ISOLATION LEVEL {isolation}");
        let mine = granted(&store, &claim(&format!("n{n}"), MINUTE)).await;
        let rows = number(&mut app, &count).await;

        let mut tx = app.begin_with(AssertSqlSafe(begin.clone())).await.unwrap();
        tx.execute(AssertSqlSafe(insert.clone())).await.unwrap();
        renew(&store, &mine).await.unwrap();
        mine.commit(tx).await.unwrap();
        assert_eq!(number(&mut app, &count).await, rows + 1, "{isolation}");

        // Taken over in the middle.
        let mut tx = app.begin_with(AssertSqlSafe(begin.clone())).await.unwrap();
        tx.execute(AssertSqlSafe(insert.clone())).await.unwrap();
        other.revoke(mine.name(), "test").await.unwrap();
        let theirs = granted(&other, &claim(&format!("n{n}"), MINUTE)).await;
        let error = mine.commit(tx).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LeaseLost, "{isolation}: {error}");
        assert_eq!(number(&mut app, &count).await, rows + 1, "{isolation}");

        // Released, and nobody has taken over: above read committed the transaction need not see that.
        let mut tx = app.begin_with(AssertSqlSafe(begin)).await.unwrap();
        tx.execute(AssertSqlSafe(insert.clone())).await.unwrap();
        other.release(&theirs).await.unwrap();
        let answer = theirs.commit(tx).await;
        if n == 0 {
            let lost = answer.unwrap_err();
            assert_eq!(lost.kind(), ErrorKind::LeaseLost, "{lost}");
        }
    }
    // Expired.
    let short = granted(&store, &claim("short", Duration::from_millis(200))).await;
    eventually("the ttl is over", MINUTE, || async {
        !is_held(&store, "short").await
    })
    .await;
    let tx = app.begin().await.unwrap();
    assert_eq!(
        short.commit(tx).await.unwrap_err().kind(),
        ErrorKind::LeaseLost
    );
}

/// From the early fence to the end of the transaction nobody takes over, and renewals go on.
#[tokio::test(flavor = "multi_thread")]
async fn an_early_fence_keeps_takeovers_out_and_renewals_going() {
    let Some(server) = shared().await else { return };
    let (store, table) = store(&server).await;
    let other = store_at(server.url(), &table);
    // Long enough to acquire a thousand on a busy machine.
    let ttl = Duration::from_secs(4);
    let mut many = Vec::new();
    for n in 0..1000 {
        many.push(granted(&store, &claim(&format!("m{n}"), ttl)).await);
        if n % 100 == 99 {
            for answer in store.renew(&many).await {
                assert!(matches!(answer, Ok(Renewal::Renewed { .. })), "{answer:?}");
            }
        }
    }
    let mine = granted(&store, &claim("n", ttl)).await;
    let mut app = by_hand(&server).await;
    let ledger = ledger(&mut app).await;
    let mut tx = app.begin().await.unwrap();
    mine.fence(&mut tx).await.unwrap();
    // Twice the ttl, and no lease beside it is lost, nor its own.
    many.push(mine.clone());
    for n in 0..8 {
        tokio::time::sleep(ttl / 4).await;
        for answer in store.renew(&many).await {
            assert!(
                matches!(answer, Ok(Renewal::Renewed { .. })),
                "round {n}: {answer:?}"
            );
        }
        tx.execute(AssertSqlSafe(format!("INSERT INTO {ledger} VALUES ({n})")))
            .await
            .unwrap();
    }
    // Released, and yet nobody takes over before the end.
    store.release(&mine).await.unwrap();
    let theirs = claim("n", ttl);
    let error = other.try_acquire(&theirs).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    tx.commit().await.unwrap();
    assert!(matches!(
        other.try_acquire(&theirs).await.unwrap(),
        Attempt::Granted(_)
    ));

    let mut tx = app.begin().await.unwrap();
    let error = mine.fence(&mut tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
}

/// A holder that stops inside its fenced transaction keeps others out for no longer than its lease had
/// left then.
#[tokio::test]
async fn a_holder_stopped_inside_is_thrown_out() {
    let Some(server) = shared().await else { return };
    let (store, table) = store(&server).await;
    let other = store_at(server.url(), &table);
    let ttl = Duration::from_secs(1);
    let mine = granted(&store, &claim("n", ttl)).await;
    let mut app = by_hand(&server).await;
    let mut tx = app.begin().await.unwrap();
    mine.fence(&mut tx).await.unwrap();
    let fenced = std::time::Instant::now();
    let theirs = claim("n", ttl);
    loop {
        match other.try_acquire(&theirs).await {
            Ok(Attempt::Granted(_)) => break,
            Ok(Attempt::Held(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        assert!(
            fenced.elapsed() < ttl * 3,
            "kept out for more than the bound"
        );
    }
    assert!(
        tx.commit().await.is_err(),
        "the server did not end the transaction"
    );
}

/// A lease of another store or another database is refused, and nothing is committed.
#[tokio::test]
async fn another_database_is_refused() {
    let Some(server) = shared().await else { return };
    let (store, _) = store(&server).await;
    let mine = granted(&store, &claim("n", MINUTE)).await;
    let mut app = by_hand(&server).await;
    let database = fresh("d");
    run(&mut app, &format!("CREATE DATABASE {database}")).await;
    let elsewhere = server.url().strip_suffix("postgres").unwrap().to_owned() + &database;
    let mut elsewhere = PgConnection::connect(&elsewhere).await.unwrap();
    let tx = elsewhere.begin().await.unwrap();
    let error = mine.commit(tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let foreign = lock_core::Lease::new(
        mine.claim(),
        mine.token(),
        MINUTE,
        lock_core::Handle::none(),
    );
    let tx = app.begin().await.unwrap();
    let error = foreign.commit(tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    drop(elsewhere);
    run(&mut app, &format!("DROP DATABASE {database} WITH (FORCE)")).await;
}
