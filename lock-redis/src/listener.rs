//! One connection that listens for all waiters of a store.
//!
//! It has a channel of its own, so that a process hears only what is meant for it. It proves now and then that it
//! still hears: in a partition a socket is silent. After each reconnect all waiters look again, since what
//! was told meanwhile is lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use lock_core::Nonce;
use redis::aio::PubSub;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::connection::Server;

/// How long a freed name is kept for the first in line.
pub(crate) const HAND_OFF: Duration = Duration::from_millis(100);

/// How often a quiet listener asks whether it still hears. Also how long it stays when nobody waits.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// How long a step of the listener may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The longest pause between two tries to connect.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// How often a waiter looks that cannot be told, and an onlooker.
pub(crate) const POLL: Duration = Duration::from_secs(1);

/// How often a waiter looks whose claim may leave nothing behind, and so cannot stand in line. No election and no
/// guard waits so.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Listening,
    Deaf,
}

/// What a waiter is told.
#[derive(Clone, Copy, Debug)]
enum News {
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
    waiters: HashMap<String, (usize, watch::Sender<News>)>,
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
pub(crate) struct Listener(Arc<Shared>);

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        // Nothing panics while it is held; what it guards is sound all the same.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, message: &str) {
        let (news, nonce) = match message.split_once(' ') {
            Some(("heir", nonce)) => (News::Heir, nonce),
            Some(("next", nonce)) => (News::Next, nonce),
            _ => return,
        };
        if let Some((_, waiter)) = self.board().waiters.get(nonce) {
            waiter.send_replace(news);
        }
    }

    fn tell_all(&self) {
        for (_, waiter) in self.board().waiters.values() {
            waiter.send_replace(News::Look);
        }
    }
}

impl Listener {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self(Arc::new(Shared {
            server,
            channel: format!("lockkit:{}", Nonce::random()),
            board: Mutex::default(),
            state: watch::Sender::new(State::Connecting),
        }))
    }

    /// The channel to be told on, empty while nothing listens.
    pub(crate) fn channel(&self) -> &str {
        let board = self.0.board();
        let runs = board.task.as_ref().is_some_and(|t| !t.is_finished());
        if runs && *self.0.state.borrow() == State::Listening {
            &self.0.channel
        } else {
            ""
        }
    }

    /// From when this has answered, nothing is missed that is told.
    pub(crate) async fn subscribe(&self, nonce: Nonce) -> Subscription {
        let shared = Arc::clone(&self.0);
        let mut state = shared.state.subscribe();
        let nonce = nonce.to_string();
        let news = {
            let mut board = shared.board();
            let (waits, news) = board
                .waiters
                .entry(nonce.clone())
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

    pub(crate) fn close(&self) {
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
pub(crate) struct Subscription {
    shared: Arc<Shared>,
    nonce: String,
    news: watch::Receiver<News>,
    state: watch::Receiver<State>,
}

impl Subscription {
    /// Resolves when this waiter should look, or (`true`) go. `kept`: how long the name is kept for another.
    pub(crate) async fn news(&mut self, kept: Option<Duration>) -> bool {
        // Spread, so that not all look at once.
        let late = self.nonce.bytes().map(u64::from).sum::<u64>() * 37 % 20_000;
        let late = Duration::from_micros(late);
        let mut limit = kept.map(|kept| kept + late);
        loop {
            if limit.is_none() && *self.state.borrow() != State::Listening {
                limit = Some(POLL);
            }
            let told = async {
                // The senders live in `shared`.
                tokio::select! {
                    _ = self.news.changed() => *self.news.borrow_and_update(),
                    _ = self.state.changed() => News::Look,
                }
            };
            let news = match limit {
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

async fn listen(shared: Weak<Shared>) {
    let mut backoff = Duration::from_millis(20);
    loop {
        let Some(strong) = shared.upgrade() else {
            return;
        };
        let server = Arc::clone(&strong.server);
        let channel = strong.channel.clone();
        drop(strong);
        let idle = match timeout(PATIENCE, connect(&server, &channel)).await {
            Ok(Ok(pubsub)) => {
                backoff = Duration::from_millis(20);
                let Some(strong) = shared.upgrade() else {
                    return;
                };
                strong.state.send_replace(State::Listening);
                strong.tell_all();
                drop(strong);
                hear(pubsub, &shared).await
            }
            Ok(Err(error)) => {
                let error = crate::error::map(&server.place, error);
                tracing::debug!(%error, "the listener could not connect");
                false
            }
            Err(_) => false,
        };
        let Some(strong) = shared.upgrade() else {
            return;
        };
        if idle {
            let mut board = strong.board();
            if board.waiters.is_empty() {
                board.task = None;
                return;
            }
            continue;
        }
        strong.state.send_replace(State::Deaf);
        drop(strong);
        backoff = (backoff * 2).min(MAX_BACKOFF);
        sleep(backoff).await;
    }
}

async fn connect(server: &Server, channel: &str) -> redis::RedisResult<PubSub> {
    let mut pubsub = server.client.get_async_pubsub().await?;
    pubsub.subscribe(channel).await?;
    Ok(pubsub)
}

/// Until the connection is lost; `true` when nobody waits.
async fn hear(pubsub: PubSub, shared: &Weak<Shared>) -> bool {
    let (mut sink, mut stream) = pubsub.split();
    loop {
        match timeout(HEARTBEAT, stream.next()).await {
            Ok(Some(message)) => match shared.upgrade() {
                Some(shared) => {
                    if let Ok(text) = message.get_payload::<String>() {
                        shared.tell(&text);
                    }
                }
                None => return true,
            },
            Ok(None) => return false,
            Err(_) => {
                match shared.upgrade() {
                    Some(shared) if shared.board().waiters.is_empty() => return true,
                    None => return true,
                    Some(_) => {}
                }
                match timeout(PATIENCE, sink.ping::<redis::Value>()).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(_)) | Err(_) => return false,
                }
            }
        }
    }
}
