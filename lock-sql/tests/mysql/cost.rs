//! What is sent for the common cases, counted by the server.

use lock_core::{Attempt, LockPersistence as _, Release};
use lock_sql::sqlx::{self, Executor as _, Row as _};

use crate::support::{LONG, Place, claim, granted};

/// Statements since the server started, of this kind (`Com_update`, `Questions`).
async fn count(place: &Place, what: &str) -> i64 {
    let sql = format!("SHOW GLOBAL STATUS LIKE '{what}'");
    let mut by_hand = place.by_hand().await;
    let row = by_hand.fetch_one(sqlx::AssertSqlSafe(sql)).await.unwrap();
    let shown: String = row.try_get_unchecked(1).unwrap();
    shown.parse().unwrap()
}

/// An acquisition of a name that was free, and its release, are one statement each and write once; a denied try reads.
#[tokio::test]
async fn an_acquisition_is_one_statement_and_a_denial_writes_nothing() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let store = place.prepared().await;
    for _ in 0..2 {
        let lease = granted(&store, &claim("n", LONG)).await;
        assert_eq!(store.release(&lease).await.unwrap(), Release::Released);
    }
    let seen = async || {
        let mut seen = Vec::new();
        for what in [
            "Com_update",
            "Com_insert_select",
            "Com_insert",
            "Com_select",
        ] {
            seen.push(count(&place, what).await);
        }
        seen
    };
    let before = seen().await;
    for _ in 0..10 {
        let lease = granted(&store, &claim("n", LONG)).await;
        assert_eq!(store.release(&lease).await.unwrap(), Release::Released);
    }
    let after = seen().await;
    let sent: Vec<_> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    assert_eq!(sent, [20, 0, 0, 0], "updates, upserts, inserts, reads");

    let lease = granted(&store, &claim("n", LONG)).await;
    let other = place.store();
    let denied = async || {
        let denied = other.try_acquire(&claim("n", LONG)).await.unwrap();
        assert!(matches!(denied, Attempt::Held(h) if h.token == lease.token()));
    };
    denied().await;
    let before = seen().await;
    for _ in 0..10 {
        denied().await;
    }
    let after = seen().await;
    let sent: Vec<_> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    assert_eq!(sent, [0, 0, 0, 10], "updates, upserts, inserts, reads");
}

/// What a store believes of a name may be wrong: the name was taken, dropped or expired meanwhile, by others.
#[tokio::test]
async fn a_wrong_belief_costs_a_statement_and_decides_nothing() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let (store, other) = (place.prepared().await, place.store());
    // It believes that the name is free, and another has taken it.
    let first = granted(&store, &claim("n", LONG)).await;
    store.release(&first).await.unwrap();
    let theirs = granted(&other, &claim("n", LONG)).await;
    let denied = store.try_acquire(&claim("n", LONG)).await.unwrap();
    assert!(matches!(denied, Attempt::Held(h) if h.token == theirs.token()));
    // It believes that it is held, and it is free.
    other.release(&theirs).await.unwrap();
    let ours = granted(&store, &claim("n", LONG)).await;
    assert!(ours.token() > theirs.token());
    // It believes that it is free, and the row is gone; the token grows all the same.
    store.release(&ours).await.unwrap();
    place.run("DELETE FROM {}").await;
    let next = granted(&store, &claim("n", LONG)).await;
    assert!(next.token() > ours.token());
    // It believes that it is held, by its own claim: asked again, the term goes on.
    let again = claim("m", LONG);
    let once = granted(&store, &again).await;
    assert_eq!(granted(&store, &again).await.token(), once.token());
    // A least token counts where the row is free, too.
    store.release(&once).await.unwrap();
    let taken = granted(&store, &claim("m", LONG)).await;
    assert!(taken.token() > once.token());
    let raised = lock_core::Token::new(taken.token().get() + 3_600_000_000).unwrap();
    store.release(&taken).await.unwrap();
    let high = granted(&store, &claim("m", LONG).with_min_token(Some(raised))).await;
    assert_eq!(high.token(), raised);
}
