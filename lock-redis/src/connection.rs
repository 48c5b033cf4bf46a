//! One shared connection to the server, opened when it is needed and thrown away when it may be broken.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error;

/// How long a connection may take to open.
const PATIENCE: Duration = Duration::from_secs(5);

/// A call that was dropped after this time without an answer has most likely met a dead connection; one that
/// was dropped sooner was cancelled, and its answer is passed over when it comes.
const SUSPICIOUS: Duration = Duration::from_millis(100);

/// Where connections lead.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) client: Client,
    /// Host and port, for messages.
    pub(crate) place: String,
}

impl Server {
    async fn open(&self) -> Result<MultiplexedConnection> {
        // The caller bounds each call, and drops it then.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(None);
        self.client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|e| error::map(&self.place, e).with_indeterminate(false))
    }
}

type Opened = Option<Result<MultiplexedConnection>>;

/// A connection that is open or being opened. It goes on opening when its callers are dropped: one that takes longer
/// than a request may would otherwise never come. Since a network that is cut for a moment can swallow a part of the
/// handshake, which then never ends, another is begun beside it once a caller has given up; the first that is open
/// serves all.
#[derive(Debug)]
struct Opening {
    opened: watch::Receiver<Opened>,
    /// Those under way hold it: it is gone when they ended without an answer, with their runtime.
    sender: Weak<watch::Sender<Opened>>,
    begun: Arc<AtomicU32>,
    given_up: bool,
}

impl Opening {
    fn begin(server: &Arc<Server>) -> Self {
        let (sender, opened) = watch::channel(None);
        let sender = Arc::new(sender);
        let opening = Self {
            opened,
            sender: Arc::downgrade(&sender),
            begun: Arc::default(),
            given_up: false,
        };
        opening.attempt(server, sender);
        opening
    }

    /// What has been begun, with another beside it when a caller has given up waiting for it.
    fn go_on(&mut self, server: &Arc<Server>) {
        let given_up = std::mem::take(&mut self.given_up);
        if given_up
            && self.opened.borrow().is_none()
            && let Some(sender) = self.sender.upgrade()
        {
            self.attempt(server, sender);
        }
    }

    fn attempt(&self, server: &Arc<Server>, sender: Arc<watch::Sender<Opened>>) {
        let (server, begun) = (Arc::clone(server), Arc::clone(&self.begun));
        let nth = begun.fetch_add(1, Ordering::Relaxed) + 1;
        tokio::spawn(async move {
            let opened = server.open().await;
            sender.send_if_modified(|place| {
                // The failure of an earlier one is no news: the latest decides.
                let counts = opened.is_ok() || nth == begun.load(Ordering::Relaxed);
                let first = place.is_none() && counts;
                if first {
                    *place = Some(opened);
                }
                first
            });
        });
    }
}

#[derive(Debug, Default)]
struct State {
    /// Grows with each connection.
    number: u64,
    opening: Option<Opening>,
}

/// The connection of one store.
#[derive(Debug)]
pub(crate) struct Slot {
    server: Arc<Server>,
    state: Mutex<State>,
}

impl Slot {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held; what it guards is sound all the same.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, and its number.
    async fn connection(&self) -> Result<(MultiplexedConnection, u64)> {
        let (mut opening, number) = {
            let mut state = self.state();
            if let Some(opening) = &mut state.opening {
                opening.go_on(&self.server);
                (opening.opened.clone(), state.number)
            } else {
                let opening = Opening::begin(&self.server);
                let opened = opening.opened.clone();
                state.number += 1;
                state.opening = Some(opening);
                (opened, state.number)
            }
        };
        let mut waiting = Waiting {
            slot: self,
            number,
            since: Instant::now(),
            done: false,
        };
        // The task ends without an answer with its runtime, which need not be this one.
        let opened = match opening.wait_for(Option::is_some).await {
            Ok(opened) => opened.clone(),
            Err(_) => None,
        };
        waiting.done = true;
        match opened {
            Some(Ok(connection)) => Ok((connection, number)),
            Some(Err(error)) => {
                self.discard(number);
                Err(error)
            }
            None => {
                self.discard(number);
                Err(Error::new(
                    ErrorKind::Unavailable,
                    "the runtime that opened the connection has ended",
                )
                .with_indeterminate(false))
            }
        }
    }

    /// The next call opens another connection. Calls that are under way on this one may still be answered.
    fn discard(&self, number: u64) {
        let mut state = self.state();
        if state.number == number {
            state.opening = None;
        }
    }

    pub(crate) fn close(&self) {
        self.state().opening = None;
    }

    async fn send(&self, command: &Cmd) -> Result<Result<Value, redis::RedisError>> {
        let (mut connection, number) = self.connection().await?;
        let mut call = Call {
            slot: self,
            number,
            sent: Instant::now(),
            answered: false,
        };
        let answer = connection.send_packed_command(command).await;
        let answer = answer.and_then(Value::extract_error);
        call.answered = true;
        if answer.as_ref().is_err_and(error::ends_connection) {
            self.discard(number);
        }
        Ok(answer)
    }

    /// One command, one round trip.
    pub(crate) async fn run(&self, command: &Cmd) -> Result<Value> {
        let answer = self.send(command).await?;
        answer.map_err(|e| error::map(&self.server.place, e))
    }

    /// One script, one round trip; two when the server does not know it yet.
    pub(crate) async fn script(
        &self,
        script: &crate::scripts::Script,
        keys: &[String],
        values: &[&str],
    ) -> Result<Value> {
        let command = |verb, text| {
            let mut command = redis::cmd(verb);
            command.arg(text).arg(keys.len()).arg(keys).arg(values);
            command
        };
        let answer = self.send(&command("EVALSHA", script.sha())).await?;
        match answer {
            // It was not run.
            Err(error) if error::is_unknown_script(&error) => {
                self.run(&command("EVAL", script.text())).await
            }
            answer => answer.map_err(|e| error::map(&self.server.place, e)),
        }
    }
}

/// A call that waits for the connection to open.
struct Waiting<'a> {
    slot: &'a Slot,
    number: u64,
    since: Instant,
    done: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.done || self.since.elapsed() < SUSPICIOUS {
            return;
        }
        let mut state = self.slot.state();
        if state.number == self.number
            && let Some(opening) = &mut state.opening
        {
            opening.given_up = true;
        }
    }
}

/// A call under way.
struct Call<'a> {
    slot: &'a Slot,
    number: u64,
    sent: Instant,
    answered: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.answered && self.sent.elapsed() >= SUSPICIOUS {
            self.slot.discard(self.number);
        }
    }
}
