//! What wrapper and keeper say to each other: one JSON object a line over a socket pair.
//!
//! Moments are nanoseconds of the system clock that counts suspend, which all processes of a machine
//! share.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// From the wrapper to the keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Until when the command may run, unless a later order moves it. The first starts the command.
    Lease {
        /// When it is to be told to stop.
        stop_at: u64,
        /// When it is killed.
        deadline: u64,
    },
    /// Pass this signal on.
    Signal {
        /// Its number.
        number: i32,
    },
    /// Tell the command to stop, unless it was told already, and kill it then at the latest.
    Stop {
        /// When it is killed.
        kill_at: u64,
    },
    /// Kill it now.
    Kill,
}

/// From the keeper to the wrapper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Report {
    /// The command runs as this process, which leads a process group.
    Started {
        /// Its process id.
        pid: i32,
    },
    /// It could not be started.
    Failed {
        /// Why.
        why: String,
    },
    /// A signal has stopped it.
    Stopped {
        /// The number of the signal.
        signal: i32,
    },
    /// The deadline came near and the wrapper had not said a word: it is told to stop.
    Overdue,
    /// It has ended, but what it has started has not; that is told to stop.
    Leftovers,
    /// It has ended, and with it everything it had started.
    Ended {
        /// Its exit code.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
    },
}

/// One end of the socket pair.
#[derive(Debug)]
pub(crate) struct Channel {
    reader: BufReader<OwnedReadHalf>,
    line: Vec<u8>,
    writer: OwnedWriteHalf,
}

impl Channel {
    pub(crate) fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(stream)?.into_split();
        Ok(Self {
            reader: BufReader::new(reader),
            line: Vec::new(),
            writer,
        })
    }

    /// The next message, or `None` when the other end is gone.
    ///
    /// # Cancel safety
    /// A line read in part is kept for the next call.
    pub(crate) async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        match self.reader.read_until(b'\n', &mut self.line).await {
            Ok(_) if self.line.ends_with(b"\n") => {
                let message = serde_json::from_slice(&self.line)?;
                self.line.clear();
                Ok(Some(message))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a message. The messages are few and small: the socket's buffer never fills up while the
    /// other end reads at all, so an end that does not is an error and not a wait.
    pub(crate) async fn send(&mut self, message: &(impl Serialize + Sync)) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        tokio::time::timeout(
            std::time::Duration::from_millis(200),
            self.writer.write_all(&line),
        )
        .await?
    }
}
