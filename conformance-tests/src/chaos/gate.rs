//! The resource that the leaders write to: it remembers the highest token and refuses a lower one.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::{FenceGate, Token};

use super::record::{Fact, Record, now};

#[derive(Debug, Default)]
struct Kept {
    gate: FenceGate,
    writes: Vec<Record>,
    last: Option<u32>,
}

/// The resource, in the process that runs the scenario, so that no candidate can hold its lock.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate(Arc<Mutex<Kept>>);

impl Gate {
    /// Serves writes at this socket until the process ends.
    pub(super) fn serve(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let gate = Self::default();
        let served = gate.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let served = served.clone();
                std::thread::spawn(move || served.answer(&client));
            }
        });
        Ok(gate)
    }

    /// One client: lines of candidate, life and token; each is answered with 1 (taken) or 0.
    fn answer(&self, client: &UnixStream) {
        for line in BufReader::new(client).lines() {
            let Ok(line) = line else { return };
            let mut numbers = line.split(' ').map_while(|word| word.parse::<u64>().ok());
            let (Some(who), Some(life), Some(token)) =
                (numbers.next(), numbers.next(), numbers.next())
            else {
                return;
            };
            let taken = self.write(who as u32, life as u32, token);
            // A client that was killed meanwhile takes no answer.
            if (&*client).write_all(&[b'0' + u8::from(taken)]).is_err() {
                return;
            }
        }
    }

    fn write(&self, who: u32, life: u32, token: u64) -> bool {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = Token::new(token).is_ok_and(|token| kept.gate.admit(token).is_ok());
        if taken {
            kept.last = Some(who);
        }
        kept.writes.push(Record {
            at: now(),
            who,
            life,
            fact: Fact::Wrote { token, taken },
        });
        taken
    }

    /// Who wrote last: as far as the resource knows, the leader.
    pub(super) fn last(&self) -> Option<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last
    }

    /// The highest token it has seen.
    pub(super) fn highest(&self) -> Option<Token> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.gate.highest()
    }

    pub(super) fn writes(&self) -> Vec<Record> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.writes.clone()
    }
}

/// A client of the resource, in a candidate.
#[derive(Debug)]
pub(super) struct Pen {
    stream: UnixStream,
    who: u32,
    life: u32,
}

impl Pen {
    pub(super) fn connect(path: &Path, who: u32, life: u32) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self { stream, who, life })
    }

    /// Writes under this token; whether it was taken.
    pub(super) fn write(&mut self, token: u64) -> io::Result<bool> {
        let line = format!("{} {} {token}\n", self.who, self.life);
        (&self.stream).write_all(line.as_bytes())?;
        let mut answer = [0];
        io::Read::read_exact(&mut &self.stream, &mut answer)?;
        Ok(answer == *b"1")
    }
}
