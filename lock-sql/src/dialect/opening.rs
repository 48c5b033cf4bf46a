//! The opening of a connection that takes longer than a call may.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

/// How long an opening may take at all. Servers give up on a client that is silent for about as long.
const LIMIT: Duration = Duration::from_secs(10);

type Begun<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A connection that is being opened. It belongs to the place of the connection, not to the call that
/// began it: where a server is far or busy, each call would otherwise begin anew, and none would ever be served.
///
/// A network that is cut for a moment can swallow a part of a handshake, which then never ends. So a call that
/// finds an opening under way begins another beside it, and takes what is open first.
pub(crate) struct Opening<T> {
    oldest: Option<(Instant, Begun<T>)>,
    newest: Option<(Instant, Begun<T>)>,
}

impl<T> Default for Opening<T> {
    fn default() -> Self {
        Self {
            oldest: None,
            newest: None,
        }
    }
}

impl<T> fmt::Debug for Opening<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Opening")
            .field(&self.oldest.is_some())
            .finish()
    }
}

impl<T: Send, E: Send> Opening<Result<T, E>> {
    /// Goes on with what an earlier call has begun, and begins another; answers what is open first, or the last error.
    /// Dropped midway, the next call goes on.
    pub(crate) async fn finish<F>(&mut self, begin: impl Fn() -> F + Send + Sync) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let now = Instant::now();
        self.oldest = self.oldest.take().or_else(|| self.newest.take());
        if self
            .oldest
            .as_ref()
            .is_some_and(|(begun, _)| now - *begun > LIMIT)
        {
            self.oldest = self.newest.take();
        }
        let fresh = Some((now, Box::pin(begin()) as Begun<_>));
        // The one between goes: the oldest is nearest to its end, unless it never ends.
        if self.oldest.is_none() {
            self.oldest = fresh;
        } else {
            self.newest = fresh;
        }
        let opened = poll_fn(|context| {
            let mut answer = Poll::Pending;
            for place in [&mut self.oldest, &mut self.newest] {
                let Some((_, begun)) = place else { continue };
                let Poll::Ready(opened) = begun.as_mut().poll(context) else {
                    continue;
                };
                *place = None;
                answer = Poll::Ready(opened);
                if matches!(answer, Poll::Ready(Ok(_))) {
                    return answer;
                }
            }
            // A failure counts when nothing else is under way.
            if self.oldest.is_some() || self.newest.is_some() {
                return Poll::Pending;
            }
            answer
        })
        .await;
        *self = Self::default();
        opened
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{sleep, timeout};

    use super::*;

    /// A server that takes `pace(n)` for the nth opening, and what was begun there.
    fn server(
        pace: impl Fn(u32) -> Duration,
    ) -> (impl Fn() -> Begun<Result<u32, ()>>, Arc<AtomicU32>) {
        let begun = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&begun);
        let begin = move || {
            let nth = counted.fetch_add(1, Ordering::Relaxed);
            let takes = pace(nth);
            Box::pin(async move {
                sleep(takes).await;
                Ok(nth)
            }) as Begun<_>
        };
        (begin, begun)
    }

    /// Calls of two seconds until one is served: the opening that served, and how many calls it took.
    async fn call(
        opening: &mut Opening<Result<u32, ()>>,
        begin: impl Fn() -> Begun<Result<u32, ()>> + Send + Sync,
    ) -> (u32, u32) {
        for calls in 1..10 {
            if let Ok(opened) = timeout(Duration::from_secs(2), opening.finish(&begin)).await {
                return (opened.unwrap(), calls);
            }
        }
        panic!("never served")
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_dropped_go_on_with_the_first_opening() {
        let (begin, begun) = server(|_| Duration::from_secs(5));
        let mut opening = Opening::default();
        assert_eq!(call(&mut opening, &begin).await, (0, 3));
        // The next one is a new one.
        let before = begun.load(Ordering::Relaxed);
        assert_eq!(call(&mut opening, &begin).await, (before, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn an_opening_that_never_ends_holds_nobody_up() {
        // The first two were swallowed by the network.
        let (begin, _) = server(|nth| Duration::from_secs(if nth < 2 { 100_000 } else { 1 }));
        assert_eq!(call(&mut Opening::default(), begin).await, (2, 3));
        let (begin, begun) = server(|_| Duration::from_secs(100_000));
        let mut opening = Opening::default();
        for _ in 0..20 {
            let call = timeout(Duration::from_secs(2), opening.finish(&begin));
            assert!(call.await.is_err());
        }
        assert_eq!(begun.load(Ordering::Relaxed), 20);
        let (oldest, _) = opening.oldest.unwrap();
        assert!(oldest.elapsed() <= LIMIT + Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_up_meanwhile_does_not_fail_the_next_call() {
        let mut opening = Opening::default();
        let begun = AtomicU32::new(0);
        let begin = || {
            let nth = begun.fetch_add(1, Ordering::Relaxed);
            async move {
                sleep(Duration::from_secs(1)).await;
                if nth == 0 { Err(()) } else { Ok(nth) }
            }
        };
        let call = timeout(Duration::from_millis(1), opening.finish(begin));
        assert!(call.await.is_err());
        assert_eq!(opening.finish(begin).await, Ok(1));
        // A failure that this call saw from the start is its own.
        begun.store(0, Ordering::Relaxed);
        assert_eq!(opening.finish(begin).await, Err(()));
    }
}
