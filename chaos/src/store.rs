//! The stores that a run can use: one that a URL names, or one started for it.

use std::path::PathBuf;
use std::time::Duration;

use conformance_tests::Stop;
use conformance_tests::chaos::{Launch, Opening, Scenario, Site, Stage};
use conformance_tests::servers::{Kind, Server, SteppedClock};
use lockkit::ConnectOptions;

/// The tick of a ZooKeeper server that is started for a run.
const TICK: Duration = Duration::from_millis(100);

/// A client of the store that this URL names. Nothing is prepared.
pub(crate) fn open(url: String) -> Opening {
    Box::pin(async move {
        let options = ConnectOptions::new().with_prepare(false);
        // Those that are started for a run tick faster than the default.
        let own = url.starts_with("zookeeper://") && !url.contains('?');
        let url = if own {
            format!("{url}?tick={}", TICK.as_millis())
        } else {
            url
        };
        Ok(options.persistence(&url).await?)
    })
}

/// Whether a store by this name has a server that is started for the run.
pub(crate) fn has_server(store: &str) -> bool {
    Kind::ALL.iter().any(|kind| kind.name() == store)
}

/// A store for one run.
#[derive(Debug)]
pub(crate) struct Place {
    name: String,
    site: Site,
    /// Kept until the run is over.
    _folder: Option<tempfile::TempDir>,
}

impl Place {
    pub(crate) fn named(store: &str, scenario: Scenario, ttl: Duration) -> Result<Self, Stop> {
        if let Some((scheme, _)) = store.split_once(':') {
            if scheme == "memory" {
                let why =
                    "the store memory: is seen by one process only; name one that processes share";
                return Err(Stop::failed(why));
            }
            return Ok(Self {
                name: scheme.to_owned(),
                site: Site::plain(scheme, store),
                _folder: None,
            });
        }
        if store == "sqlite" {
            let folder = tempfile::tempdir().map_err(Stop::failed)?;
            let file: PathBuf = folder.path().join("locks.db");
            return Ok(Self {
                name: store.to_owned(),
                site: Site::plain(store, format!("sqlite:{}", file.display())),
                _folder: Some(folder),
            });
        }
        let kinds = [Kind::Postgres, Kind::MariaDb, Kind::Redis, Kind::ZooKeeper];
        let kind = kinds.into_iter().find(|kind| kind.name() == store);
        let Some(kind) = kind else {
            let names = kinds.map(Kind::name).join(", ");
            return Err(Stop::failed(format!(
                "--store {store:?} is neither a URL nor one of sqlite, {names}"
            )));
        };
        let mut builder = Server::builder(kind);
        if kind == Kind::Redis {
            // A restart of a server that keeps nothing ends every lease.
            builder = builder.durable();
        }
        // Redis does not start with another clock than the machine's.
        let stepped = scenario.steps_the_store() && kind != Kind::Redis;
        let clock = stepped.then(SteppedClock::new);
        let clock = clock.transpose().map_err(Stop::failed)?;
        if let Some(clock) = &clock {
            builder = builder.with_clock(clock.clone());
        }
        let server = builder.start_program().map_err(|error| {
            if error.is_missing() {
                Stop::not_applicable(error.to_string())
            } else {
                Stop::failed(error)
            }
        })?;
        let mut site = Site::server(server);
        if kind == Kind::ZooKeeper {
            // The session of a lease, and the tick at which it ends.
            site = site.with_lingering((ttl + TICK) * 5 / 4 + TICK - ttl);
        }
        if let Some(clock) = clock {
            site = site.with_clock(clock);
        }
        Ok(Self {
            name: store.to_owned(),
            site,
            _folder: None,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn stage(&self, launch: Launch) -> Stage {
        Stage::new(self.site.clone(), launch, open)
    }
}
