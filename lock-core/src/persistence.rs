//! The trait that a store author implements.

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::capabilities::Capabilities;
use crate::claim::{Attempt, Claim, Holder, Lease, Observation, Release, Renewal, Request};
use crate::error::Result;
use crate::name::LockName;
use crate::token::Token;

/// Atomic lease operations, judged by the store.
///
/// Implement this over your store, prove it with the conformance suite, and hand it to a
/// [`Provider`](crate::Provider). **Unstable until all backends of this project are in.**
///
/// # Rules for all methods
/// * Every method is one decision of the *store*: its clock, its transaction. A method reports what
///   the store said; it never computes a deadline and never compares with the local wall clock.
/// * There are no default bodies. What a store cannot do answers
///   [`Unsupported`](crate::ErrorKind::Unsupported), and its [`capabilities`](Self::capabilities) say so.
/// * The persistence owns its connections. A call that is dropped midway must leave no connection in
///   a state that harms the next call; whether it took effect is then unknown to the caller, who
///   withdraws or releases.
/// * The caller bounds every call but [`wait`](Self::wait) and [`watch`](Self::watch) with its request
///   timeout and drops it then. A connection whose call was dropped is thrown away.
/// * A method must not block its thread. Where a statement can wait *in the store* (for the lock of a
///   row), the store is told to give up well before any request timeout, by a setting of the
///   persistence's own: a try that waits on after its caller has dropped it takes the name later, for
///   nobody, and no withdrawal that came first can have removed it.
/// * An error is `is_indeterminate` unless it is certain that nothing took effect.
/// * Ownership is tested with nonce **and** token, never with the owner.
///
/// # Nonce rules
/// 1. One nonce is at most one term. Once a withdraw or a release has been sent, it is dead.
/// 2. Repeating [`try_acquire`](Self::try_acquire) with the same nonce while its grant is unexpired
///    returns the same token and a full ttl again. After the expiry it is a new grant with a new
///    token, or `Held`. What is published of it (owner, metadata, ttl) is written again each time.
/// 3. A nonce of mode [`Once`](crate::Mode::Once) that was denied, or has surely failed, is dead too: no
///    withdraw follows, and a request of it that is executed late must leave nothing behind.
/// 4. On a store whose entries live as long as a session, every renewal *and every try* also deletes the
///    session's own entries that belong to no live claim: an entry that was made late would otherwise
///    live as long as its siblings are renewed.
#[async_trait]
pub trait LockPersistence: fmt::Debug + Send + Sync {
    /// What this store can do. Constant over the life of the value.
    fn capabilities(&self) -> &Capabilities;

    /// Makes what the store needs (a table, a parent node). Idempotent, and safe when many processes
    /// start at once. Refuses with the exact statement to run when it lacks the right to.
    ///
    /// # Errors
    /// `Schema` when something of another shape stands there, `PermissionDenied`, or why the store
    /// could not be reached.
    async fn prepare(&self) -> Result<()>;

    /// Takes the name for this claim if it is free, expired or absent, with a **new, larger** token;
    /// else says who holds it. Larger also than a token whose entry was deleted by hand, as far as the
    /// store can: where it remembers nothing else, its clock in microseconds is a good least token.
    ///
    /// A ttl that the store cannot keep, such as zero, is refused with
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig), never cut.
    ///
    /// The ttl of a grant is a lower bound of the time left *counted from the start of this call*: on
    /// a session store the call proves its session itself. [`Mode::Once`](crate::Mode::Once) leaves no
    /// entry when it is not granted; [`Mode::Queue`](crate::Mode::Queue) may enter a queue and keeps
    /// its place over repeated calls with the same nonce. A claim in a queue that was neither tried nor
    /// waited for during its ttl may be dropped by the store.
    ///
    /// `Held` may also mean that nobody has it yet (a split vote of a quorum). A store whose one
    /// statement lost a race without seeing who won repeats it, a few times at most.
    ///
    /// # Errors
    /// Why the store could not decide; `is_indeterminate` when it may have.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt>;

    /// Restarts the countdown of each lease. Same length and order as `leases`, each entry its own
    /// result.
    ///
    /// Extends only the entry with this nonce and token that has **not expired**, judged when the
    /// entry is written and not when the statement began; otherwise [`Renewal::Gone`], nothing
    /// touched. Never changes the token. One blocked or failing entry delays no other: an entry that
    /// cannot be written now is a retryable error, not `Gone`.
    ///
    /// A session store proves the session with a request whose answer it can match to *this* call, and
    /// then the entry: one does not prove the other.
    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>>;

    /// Frees the entry of this term, and only that, and wakes a waiter. The token never goes back.
    /// For an entry of this term that has expired and still lies there either answer is right.
    ///
    /// # Errors
    /// Why the store could not decide; `is_indeterminate` when it may have.
    async fn release(&self, lease: &Lease) -> Result<Release>;

    /// Forgets a claim that was not granted, or whose outcome is unknown: afterwards no entry with its
    /// nonce is left, neither in a queue nor as the holder. Knows the claim only, so a nonce must be
    /// enough to find its entry. It speaks for the moment at which it is carried out; a store on which a
    /// dropped try may still be on its way does well to void that too (by changing the version it would
    /// swap), or the name is held for nobody until the ttl is over.
    ///
    /// # Errors
    /// Why the store could not decide; `is_indeterminate` when it may have.
    async fn withdraw(&self, claim: &Claim) -> Result<()>;

    /// Resolves when another attempt is worth making. `seen` is what the last attempt answered.
    ///
    /// A hint: it may come early, and asserts nothing. It subscribes first and *then* compares the
    /// state with `seen`, so that no release falls between. It compares the *term* (is it held, with the
    /// same token), not the version: a renewal is no news. While it pends it keeps the place of the
    /// claim, and with it the session, alive. Many waits may pend at once over one subscription. A
    /// store without push pends for ever; the core bounds it by `seen.remaining` and a fallback poll.
    ///
    /// # Errors
    /// Why it can no longer listen; the core polls meanwhile and calls again.
    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()>;

    /// Looks at one name without being a candidate. Needs no right to write.
    ///
    /// # Errors
    /// Why the store could not be read.
    async fn observe(&self, name: &LockName) -> Result<Observation>;

    /// Resolves when the state of a name may differ from `seen`. A hint, like [`wait`](Self::wait);
    /// a renewal alone need not resolve it. A store without push pends for ever.
    ///
    /// # Errors
    /// Why it can no longer listen.
    async fn watch(&self, seen: &Observation) -> Result<()>;

    /// The names that begin with `prefix` and are not [`Absent`](crate::LeaseState::Absent), in byte
    /// order. A foreign entry whose name breaks the rule of [`LockName`] is left out.
    ///
    /// # Errors
    /// Why the store could not be read.
    async fn list(&self, prefix: &str) -> Result<Vec<Observation>>;

    /// Ends the lease of whoever holds the name and burns a larger token, which is returned, so that
    /// the old holder is fenced at once. `None` when nobody holds it. The next grant's token is not below
    /// it: a store with a queue answers the token of the old holder plus one, since the waiters got
    /// theirs when they came.
    ///
    /// # Errors
    /// Why the store could not decide.
    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>>;

    /// Leaves a wish that the holder sees at its next renewal, in place of an earlier one. It belongs to
    /// the present term and ends with it. `false` when nobody holds the name.
    ///
    /// # Errors
    /// Why the store could not decide.
    async fn request(&self, name: &LockName, request: &Request) -> Result<bool>;

    /// The store's wall clock, for reports of skew only. `Unsupported` where the store does not tell it.
    ///
    /// # Errors
    /// Why the store could not be read.
    async fn server_time(&self) -> Result<SystemTime>;

    /// Removes entries that nobody has held for `unused_for`; returns how many. A removed name gets
    /// larger tokens again than it had. A store that keeps its entries for ever answers zero.
    ///
    /// # Errors
    /// Why the store could not decide.
    async fn sweep(&self, unused_for: Duration) -> Result<u64>;

    /// Gives sessions and connections back. Later calls answer `Unavailable`. It need not be told what is
    /// held: the caller releases first; what is left ends with the session, or expires.
    ///
    /// # Errors
    /// Why a session could not be given back; it then ends by itself.
    async fn close(&self) -> Result<()>;
}
