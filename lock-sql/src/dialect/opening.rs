//! The opening of a connection that takes longer than a call may.

use std::fmt;
use std::pin::Pin;

/// A connection that is being opened. It belongs to the place of the connection, not to the call that
/// began it: where a server is far or busy, each call would otherwise begin anew, and none would ever be served.
pub(crate) struct Opening<T>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T> Default for Opening<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> fmt::Debug for Opening<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Opening").field(&self.0.is_some()).finish()
    }
}

impl<T: Send, E: Send> Opening<Result<T, E>> {
    /// Goes on with what an earlier call has begun, else begins. Dropped midway, the next call goes on.
    /// What an earlier call began and the server has given up meanwhile is begun once more.
    pub(crate) async fn finish<F>(&mut self, begin: impl Fn() -> F + Send + Sync) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let resumed = self.0.is_some();
        let opened = self.run(&begin).await;
        if resumed && opened.is_err() {
            return self.run(&begin).await;
        }
        opened
    }

    async fn run<F>(&mut self, begin: impl Fn() -> F + Send + Sync) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let opening = self.0.get_or_insert_with(|| Box::pin(begin()));
        let opened = opening.as_mut().await;
        self.0 = None;
        opened
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_dropped_go_on_with_one_opening() {
        let mut opening = Opening::default();
        let begun = Arc::new(AtomicU32::new(0));
        let begin = || {
            let begun = Arc::clone(&begun);
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_secs(5)).await;
                Ok::<_, ()>(7)
            }
        };
        let mut calls = 1;
        let opened = loop {
            match timeout(Duration::from_secs(2), opening.finish(begin)).await {
                Ok(opened) => break opened,
                Err(_) => calls += 1,
            }
            assert!(calls < 10);
        };
        assert_eq!((opened, calls), (Ok(7), 3));
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        // The next one is a new one.
        assert_eq!(opening.finish(begin).await, Ok(7));
        assert_eq!(begun.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_up_meanwhile_is_begun_once_more() {
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
