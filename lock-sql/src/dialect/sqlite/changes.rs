//! How a waiter learns of a commit of another process: by events on the database's files.
//!
//! The *folder* is watched, so that it does not matter when the `-wal` file is removed at the last close
//! and made again. An event comes when a commit is being written, which is before it can be read (it is
//! flushed in between), and none comes after that: so an event is followed by looks, each after an eighth
//! of the time since the event. What a commit takes is then seen an eighth later, be the disk fast or slow.

use std::path::Path;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::Result;
use tokio::time::{Instant, sleep_until};

use crate::dialect::Changes;

/// The shortest pause before a look.
const SHORTEST: Duration = Duration::from_millis(1);

/// The shortest pause under a stream of events (a busy database).
const SHORTEST_BUSY: Duration = Duration::from_millis(4);

/// A look comes after this part of the time since the event.
const PART: u32 = 8;

/// No looks later than this after an event: no commit is flushed for longer.
const LATEST: Duration = Duration::from_secs(1);

/// How often to look where no events can be had.
const POLL: Duration = Duration::from_millis(25);

/// The one watcher of a persistence, while somebody waits.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<Weak<platform::Watcher>>);

impl Watch {
    pub(super) fn subscribe(&self, file: &Path) -> Box<dyn Changes> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let watcher = shared.upgrade().filter(|watcher| !watcher.is_broken());
        let watcher = match watcher {
            Some(watcher) => watcher,
            None => match platform::Watcher::new(file) {
                Ok(watcher) => {
                    *shared = std::sync::Arc::downgrade(&watcher);
                    watcher
                }
                Err(error) => {
                    tracing::debug!(%error, "no change events for the database file; polling instead");
                    return Box::new(Poll);
                }
            },
        };
        Box::new(Events {
            subscription: platform::Subscription::new(watcher),
            // A commit that was being written before we subscribed may become visible after the first
            // read: begin as after an event.
            event: Some(Instant::now()),
            busy: false,
        })
    }
}

struct Poll;

#[async_trait]
impl Changes for Poll {
    async fn changed(&mut self) -> Result<()> {
        tokio::time::sleep(POLL).await;
        Ok(())
    }
}

struct Events {
    subscription: platform::Subscription,
    /// When the last event came, while looks are due for it.
    event: Option<Instant>,
    /// Whether it came in a stream of them.
    busy: bool,
}

#[async_trait]
impl Changes for Events {
    async fn changed(&mut self) -> Result<()> {
        let event = match self.event {
            Some(event) => event,
            None => {
                if !self.subscription.event().await {
                    return Poll.changed().await;
                }
                Instant::now()
            }
        };
        let shortest = if self.busy { SHORTEST_BUSY } else { SHORTEST };
        let due = Instant::now() + (event.elapsed() / PART).max(shortest);
        let mut more = false;
        loop {
            tokio::select! {
                biased;
                () = sleep_until(due) => break,
                alive = self.subscription.event(), if !more => more = alive,
            }
        }
        self.event = if more {
            Some(Instant::now())
        } else {
            Some(event).filter(|event| event.elapsed() < LATEST)
        };
        self.busy = more;
        Ok(())
    }
}

#[cfg(target_os = "linux")]
mod platform {
    use std::ffi::{OsStr, OsString};
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::inotify;
    use rustix::io::Errno;
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;
    use tokio::sync::watch;

    /// Many wait on one descriptor. Whoever wakes first reads it empty and tells the others, so that no
    /// task of its own is needed.
    #[derive(Debug)]
    pub(super) struct Watcher {
        events: AsyncFd<OwnedFd>,
        names: [OsString; 3],
        seen: watch::Sender<u64>,
        broken: AtomicBool,
    }

    impl Watcher {
        pub(super) fn new(file: &Path) -> io::Result<Arc<Self>> {
            let file = std::fs::canonicalize(file)?;
            let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
                return Err(io::Error::from(io::ErrorKind::NotFound));
            };
            let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
            inotify::add_watch(
                &fd,
                folder,
                inotify::WatchFlags::MODIFY
                    | inotify::WatchFlags::CREATE
                    | inotify::WatchFlags::DELETE
                    | inotify::WatchFlags::MOVED_TO
                    | inotify::WatchFlags::DELETE_SELF
                    | inotify::WatchFlags::MOVE_SELF,
            )?;
            let with = |end: &str| {
                let mut name = name.to_os_string();
                name.push(end);
                name
            };
            #[allow(
                deprecated,
                reason = "an `OwnedFd` always answers its own descriptor; the replacement needs unsafe"
            )]
            let events = AsyncFd::with_interest(fd, Interest::READABLE)?;
            Ok(Arc::new(Self {
                events,
                names: [name.to_os_string(), with("-wal"), with("-journal")],
                seen: watch::Sender::new(0),
                broken: AtomicBool::new(false),
            }))
        }

        pub(super) fn is_broken(&self) -> bool {
            self.broken.load(Ordering::Relaxed)
        }

        /// Reads all events; whether one concerns our files.
        fn drain(&self) -> io::Result<bool> {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = inotify::Reader::new(self.events.get_ref(), &mut buffer);
            let mut ours = false;
            loop {
                match reader.next() {
                    Ok(event) => {
                        let kind = event.events();
                        if kind.intersects(
                            inotify::ReadFlags::IGNORED
                                | inotify::ReadFlags::DELETE_SELF
                                | inotify::ReadFlags::MOVE_SELF,
                        ) {
                            return Err(io::Error::from(io::ErrorKind::NotFound));
                        }
                        ours |= kind.contains(inotify::ReadFlags::QUEUE_OVERFLOW)
                            || event.file_name().is_some_and(|name| {
                                let name = OsStr::from_bytes(name.to_bytes());
                                self.names.iter().any(|ours| ours == name)
                            });
                    }
                    Err(Errno::AGAIN) => return Ok(ours),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    pub(super) struct Subscription {
        watcher: Arc<Watcher>,
        seen: watch::Receiver<u64>,
    }

    impl Subscription {
        pub(super) fn new(watcher: Arc<Watcher>) -> Self {
            let seen = watcher.seen.subscribe();
            Self { watcher, seen }
        }

        /// Resolves at the next event since the last call; false when there will be none any more.
        pub(super) async fn event(&mut self) -> bool {
            let watcher = &self.watcher;
            loop {
                if watcher.is_broken() {
                    return false;
                }
                tokio::select! {
                    biased;
                    told = self.seen.changed() => return told.is_ok() && !watcher.is_broken(),
                    ready = watcher.events.readable() => {
                        let drained = match ready {
                            Ok(mut ready) => {
                                let drained = watcher.drain();
                                ready.clear_ready();
                                drained
                            }
                            // The runtime that it was made on has ended.
                            Err(error) => Err(error),
                        };
                        if drained.is_err() {
                            watcher.broken.store(true, Ordering::Relaxed);
                        }
                        if !matches!(drained, Ok(false)) {
                            watcher.seen.send_modify(|n| *n = n.wrapping_add(1));
                        }
                    }
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use std::io;
    use std::path::Path;
    use std::sync::Arc;

    #[derive(Debug)]
    pub(super) struct Watcher;

    impl Watcher {
        pub(super) fn new(_: &Path) -> io::Result<Arc<Self>> {
            Err(io::Error::from(io::ErrorKind::Unsupported))
        }

        pub(super) fn is_broken(&self) -> bool {
            false
        }
    }

    pub(super) struct Subscription(Arc<Watcher>);

    impl Subscription {
        pub(super) fn new(watcher: Arc<Watcher>) -> Self {
            Self(watcher)
        }

        pub(super) async fn event(&mut self) -> bool {
            !self.0.is_broken()
        }
    }
}
