//! One connection that listens for all waiters of a process.
//!
//! It has a channel of its own, so that a process hears only what is meant for it. It proves now and then that
//! it still hears: in a partition a socket is silent. After each reconnect all waiters look again, since
//! what was told meanwhile is lost. Through a pooler that shares sessions there is nothing to listen
//! on, and waiters poll.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use lock_core::Nonce;
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::connection::Server;
use super::statements::HAND_OFF;

/// How often a quiet listener asks whether it still hears. Also how long it stays when nobody waits.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// How long a step of the listener may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The longest pause between two tries to connect.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// How often a waiter looks that cannot be told.
pub(super) const POLL: Duration = Duration::from_secs(1);

/// How often a waiter looks whose claim may leave nothing behind, and so cannot stand in line. No election
/// and no guard waits so.
pub(super) const LOOK: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Listening,
    /// No server, or a pooler before it.
    Polling,
}

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    None,
    /// Something may have been missed.
    Look,
    /// The name is free and kept for this claim.
    Heir,
    /// The name is free and kept for another: look when that time is over.
    Next,
}

#[derive(Debug, Default)]
struct Board {
    /// The nonces of the claims that wait, and how many waits there are for each.
    waiters: HashMap<u128, (usize, watch::Sender<News>)>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: Arc<Server>,
    channel: String,
    board: Mutex<Board>,
    state: watch::Sender<State>,
}

/// The listener of one store. Its task runs while somebody waits.
#[derive(Debug)]
pub(super) struct Listener(Arc<Shared>);

impl Shared {
    fn board(&self) -> std::sync::MutexGuard<'_, Board> {
        // Nothing panics while it is held; what it guards is sound all the same.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_all(&self) {
        for (_, news) in self.board().waiters.values() {
            news.send_replace(News::Look);
        }
    }

    fn tell(&self, payload: &str) {
        let (news, nonce) = match payload.split_once(' ') {
            Some(("heir", nonce)) => (News::Heir, nonce),
            Some(("next", nonce)) => (News::Next, nonce),
            _ => return,
        };
        let board = self.board();
        if let Ok(nonce) = u128::from_str_radix(nonce, 16)
            && let Some((_, waiter)) = board.waiters.get(&nonce)
        {
            waiter.send_replace(news);
        }
    }
}

impl Listener {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self(Arc::new(Shared {
            server,
            channel: format!("lockkit_{:032x}", Nonce::random().as_u128()),
            board: Mutex::default(),
            state: watch::Sender::new(State::Connecting),
        }))
    }

    /// The channel to be told on, empty while nothing listens.
    pub(super) fn channel(&self) -> &str {
        let runs = self
            .0
            .board()
            .task
            .as_ref()
            .is_some_and(|t| !t.is_finished());
        if runs && *self.0.state.borrow() == State::Listening {
            &self.0.channel
        } else {
            ""
        }
    }

    /// From when this has answered, nothing is missed that is told.
    pub(super) async fn subscribe(&self, nonce: Nonce) -> Subscription {
        let shared = Arc::clone(&self.0);
        let mut state = shared.state.subscribe();
        let nonce = nonce.as_u128();
        let news = {
            let mut board = shared.board();
            let (waits, news) = board
                .waiters
                .entry(nonce)
                .or_insert_with(|| (0, watch::Sender::new(News::None)));
            *waits += 1;
            let news = news.subscribe();
            // A task ends with its runtime, which need not be this one.
            if board.task.as_ref().is_none_or(JoinHandle::is_finished) {
                shared.state.send_replace(State::Connecting);
                board.task = Some(tokio::spawn(listen(Arc::downgrade(&shared))));
            }
            news
        };
        let subscription = Subscription {
            shared,
            nonce,
            news,
            state: state.clone(),
        };
        // The sender lives in `subscription`.
        let settled = state.wait_for(|s| *s != State::Connecting);
        if timeout(PATIENCE, settled).await.is_err() {
            tracing::debug!("the listener is slow to connect; waiting polls until it has");
        }
        subscription
    }

    pub(super) fn close(&self) {
        if let Some(task) = self.0.board().task.take() {
            task.abort();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

/// A waiter's place on the board, given up by dropping it.
#[derive(Debug)]
pub(super) struct Subscription {
    shared: Arc<Shared>,
    nonce: u128,
    news: watch::Receiver<News>,
    state: watch::Receiver<State>,
}

impl Subscription {
    /// Resolves when this waiter should look, or (`true`) go. `kept`: how long the name is kept for another.
    pub(super) async fn news(&mut self, kept: Option<Duration>) -> bool {
        // Spread, so that not all look at once.
        let late = Duration::from_micros(u64::try_from(self.nonce % 20_000).unwrap_or(0));
        let mut limit = kept.map(|kept| kept + late);
        loop {
            let polling = *self.state.borrow() != State::Listening;
            let limit_now = match (limit, polling) {
                (Some(limit), _) => Some(limit),
                (None, true) => Some(POLL),
                (None, false) => None,
            };
            let told = async {
                // The senders live in `shared`.
                tokio::select! {
                    _ = self.news.changed() => *self.news.borrow_and_update(),
                    _ = self.state.changed() => News::Look,
                }
            };
            let news = match limit_now {
                Some(limit) => timeout(limit, told).await.unwrap_or(News::Look),
                None => told.await,
            };
            match news {
                News::Heir => return true,
                News::Look => return false,
                News::Next => limit = Some(HAND_OFF + late),
                News::None => {}
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut board = self.shared.board();
        if let Some((waits, _)) = board.waiters.get_mut(&self.nonce) {
            *waits -= 1;
            if *waits == 0 {
                board.waiters.remove(&self.nonce);
            }
        }
    }
}

/// Why a connection that listens has ended.
enum End {
    Idle,
    Pooled,
    Lost,
}

async fn listen(shared: Weak<Shared>) {
    let mut backoff = Duration::from_millis(20);
    loop {
        let Some(strong) = shared.upgrade() else {
            return;
        };
        let server = Arc::clone(&strong.server);
        let channel = strong.channel.clone();
        drop(strong);
        let end = match timeout(PATIENCE, connect(&server, &channel)).await {
            Ok(Ok(Some((listener, mark)))) => {
                backoff = Duration::from_millis(20);
                let Some(strong) = shared.upgrade() else {
                    return;
                };
                strong.state.send_replace(State::Listening);
                strong.tell_all();
                drop(strong);
                hear(listener, &mark, &shared).await
            }
            Ok(Ok(None)) => End::Pooled,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the listener could not connect");
                End::Lost
            }
            Err(_) => End::Lost,
        };
        let Some(strong) = shared.upgrade() else {
            return;
        };
        if matches!(end, End::Idle) {
            let mut board = strong.board();
            if board.waiters.is_empty() {
                board.task = None;
                return;
            }
            continue;
        }
        strong.state.send_replace(State::Polling);
        drop(strong);
        let pause = if matches!(end, End::Pooled) {
            // The pooler may be taken away one day.
            HEARTBEAT * 6
        } else {
            backoff = (backoff * 2).min(MAX_BACKOFF);
            backoff
        };
        sleep(pause).await;
    }
}

/// A connection that listens and its mark; `None` through a pooler.
async fn connect(
    server: &Server,
    channel: &str,
) -> Result<Option<(PgListener, String)>, sqlx::Error> {
    let Some((options, mark)) = server.listening() else {
        return Ok(None);
    };
    // The driver listens on connections of a pool only.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .test_before_acquire(false)
        .connect_lazy_with(options);
    let mut listener = match PgListener::connect_with(&pool).await {
        Ok(listener) => listener,
        Err(error) if crate::error::postgres::is_pooler(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    Ok(hears(&mut listener, &mark)
        .await?
        .then_some((listener, mark)))
}

/// Whether the session that answers is the one that listens.
async fn hears(listener: &mut PgListener, mark: &str) -> Result<bool, sqlx::Error> {
    let ask = sqlx::raw_sql(AssertSqlSafe(format!(
        "SELECT coalesce(current_setting('{}', true), '') AS mark",
        super::connection::MARK
    )));
    let row = listener.fetch_one(ask).await?;
    Ok(row.try_get::<String, _>("mark")? == mark)
}

async fn hear(mut listener: PgListener, mark: &str, shared: &Weak<Shared>) -> End {
    loop {
        match timeout(HEARTBEAT, listener.try_recv()).await {
            Ok(Ok(Some(notification))) => match shared.upgrade() {
                Some(shared) => shared.tell(notification.payload()),
                None => return End::Idle,
            },
            Ok(Ok(None) | Err(_)) => return End::Lost,
            Err(_) => {
                match shared.upgrade() {
                    Some(shared) if shared.board().waiters.is_empty() => return End::Idle,
                    None => return End::Idle,
                    Some(_) => {}
                }
                match timeout(PATIENCE, hears(&mut listener, mark)).await {
                    Ok(Ok(true)) => {}
                    Ok(Ok(false)) => return End::Pooled,
                    Ok(Err(_)) | Err(_) => return End::Lost,
                }
            }
        }
    }
}
