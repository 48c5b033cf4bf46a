//! What the scripts answer: a word, then texts.

use std::time::Duration;

use lock_core::{Error, Holder, LeaseState, Metadata, Owner, Result, Token};
use redis::Value;

use crate::error::unexpected;

/// The texts of an answer, taken one after the other.
#[derive(Debug)]
pub(crate) struct Answer(std::vec::IntoIter<Value>);

fn text(value: Value) -> Result<String> {
    match value {
        Value::BulkString(bytes) => {
            String::from_utf8(bytes).map_err(|_| unexpected("a text that is not UTF-8"))
        }
        Value::SimpleString(text) => Ok(text),
        Value::Int(number) => Ok(number.to_string()),
        _ => Err(unexpected("an answer of another shape")),
    }
}

impl Answer {
    pub(crate) fn new(value: Value) -> Result<Self> {
        match value {
            Value::Array(values) => Ok(Self(values.into_iter())),
            value => Ok(Self(vec![value].into_iter())),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        text(self.0.next().ok_or_else(|| unexpected("too little"))?)
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        self.text()?
            .parse()
            .map_err(|_| unexpected("a text where a number should be"))
    }

    pub(crate) fn token(&mut self) -> Result<Token> {
        Token::new(self.number()?).map_err(|_| unexpected("a token out of range"))
    }

    pub(crate) fn owner(&mut self) -> Result<Owner> {
        Owner::new(self.text()?).map_err(|_| unexpected("no owner"))
    }

    pub(crate) fn micros(&mut self) -> Result<Duration> {
        Ok(Duration::from_micros(self.number()?))
    }

    pub(crate) fn holder(&mut self) -> Result<Holder> {
        let owner = self.owner()?;
        let (token, left) = (self.token()?, self.micros()?);
        let ttl = Duration::from_millis(self.number()?);
        let holder = Holder::new(owner, token, left, ttl, self.number()?);
        let metadata = Metadata::new(self.text()?).map_err(|_| unexpected("metadata too long"))?;
        Ok(holder.with_metadata(metadata))
    }

    pub(crate) fn state(&mut self) -> Result<LeaseState> {
        match self.text()?.as_str() {
            "held" => Ok(LeaseState::Held(self.holder()?)),
            "free" => Ok(LeaseState::Free {
                token: self.token()?,
                note: Metadata::new(self.text()?)
                    .map_err(|_: Error| unexpected("a note too long"))?,
            }),
            "absent" => Ok(LeaseState::Absent),
            word => Err(unexpected(word)),
        }
    }
}
