//! One connection that listens for all names.
//!
//! It proves now and then that it still hears: in a partition a socket is silent. After each reconnect all
//! waiters read again, since what was told meanwhile is lost. Through a pooler that shares sessions there
//! is nothing to listen on, and waiters poll.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{LockName, Result};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::connection::Server;
use crate::dialect::Changes;

/// How often a quiet listener asks whether it still hears. Also how long it stays when nobody waits.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// How long a step of the listener may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The longest pause between two tries to connect.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// How often a waiter reads who cannot be told.
pub(super) const POLL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Listening,
    /// No server, or a pooler before it.
    Polling,
}

#[derive(Debug)]
struct Topic {
    waiters: usize,
    news: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Board {
    topics: HashMap<String, Topic>,
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
        for topic in self.board().topics.values() {
            topic.news.send_replace(());
        }
    }
}

impl Listener {
    pub(super) fn new(server: Arc<Server>, channel: &str) -> Self {
        Self(Arc::new(Shared {
            server,
            channel: channel.to_owned(),
            board: Mutex::default(),
            state: watch::Sender::new(State::Connecting),
        }))
    }

    pub(super) async fn subscribe(&self, name: &LockName) -> Box<dyn Changes> {
        let shared = Arc::clone(&self.0);
        let mut state = shared.state.subscribe();
        let news = {
            let mut board = shared.board();
            let topic = board
                .topics
                .entry(name.as_str().to_owned())
                .or_insert_with(|| Topic {
                    waiters: 0,
                    news: watch::Sender::new(()),
                });
            topic.waiters += 1;
            let news = topic.news.subscribe();
            // A task ends with its runtime, which need not be this one.
            if board.task.as_ref().is_none_or(JoinHandle::is_finished) {
                shared.state.send_replace(State::Connecting);
                board.task = Some(tokio::spawn(listen(Arc::downgrade(&shared))));
            }
            news
        };
        let subscription = Subscription {
            shared,
            name: name.as_str().to_owned(),
            news,
            state: state.clone(),
        };
        // The sender lives in `subscription`.
        let settled = state.wait_for(|s| *s != State::Connecting);
        if timeout(PATIENCE, settled).await.is_err() {
            tracing::debug!("the listener is slow to connect; waiting polls until it has");
        }
        Box::new(subscription)
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

struct Subscription {
    shared: Arc<Shared>,
    name: String,
    news: watch::Receiver<()>,
    state: watch::Receiver<State>,
}

#[async_trait]
impl Changes for Subscription {
    async fn changed(&mut self) -> Result<()> {
        let polling = *self.state.borrow() != State::Listening;
        let told = self.news.changed();
        if polling {
            // Whichever comes first.
            let _ = timeout(POLL, told).await;
        } else {
            // The sender lives in `shared`.
            let _ = timeout(POLL * 2, told).await;
        }
        Ok(())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut board = self.shared.board();
        if let Some(topic) = board.topics.get_mut(&self.name) {
            topic.waiters -= 1;
            if topic.waiters == 0 {
                board.topics.remove(&self.name);
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
            if board.topics.is_empty() {
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
            Ok(Ok(Some(notification))) => {
                let Some(shared) = shared.upgrade() else {
                    return End::Idle;
                };
                if let Some(topic) = shared.board().topics.get(notification.payload()) {
                    topic.news.send_replace(());
                }
            }
            Ok(Ok(None) | Err(_)) => return End::Lost,
            Err(_) => {
                match shared.upgrade() {
                    Some(shared) if shared.board().topics.is_empty() => return End::Idle,
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
