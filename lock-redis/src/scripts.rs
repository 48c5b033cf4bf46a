//! The scripts. Each is one decision of the server, in one round trip.

use std::sync::LazyLock;

/// A script with the part that all share.
#[derive(Debug)]
pub(crate) struct Script(redis::Script, String);

impl Script {
    fn new(text: &str) -> Self {
        let whole = format!("{}\n{text}", include_str!("scripts/common.lua"));
        Self(redis::Script::new(&whole), whole)
    }

    pub(crate) fn sha(&self) -> &str {
        self.0.get_hash()
    }

    pub(crate) fn text(&self) -> &str {
        &self.1
    }
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {$(
        pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("scripts/", $file))));
    )*};
}

scripts! {
    ACQUIRE = "acquire.lua";
    BORN = "born.lua";
    LOOK = "look.lua";
    READ = "read.lua";
    RELEASE = "release.lua";
    RENEW = "renew.lua";
    REQUEST = "request.lua";
    REVOKE = "revoke.lua";
    SWEEP = "sweep.lua";
    WITHDRAW = "withdraw.lua";
}
