//! Servers in containers, through testcontainers.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use testcontainers::bollard::models::PortBinding;
use testcontainers::bollard::{self, Docker};
use testcontainers::core::ContainerPort;
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage, ImageExt};

use super::program::{DATABASE, Setup};
use super::{Error, Kind};

/// A container, with a thread of its own that talks to the engine, so that orders work from any thread and runtime.
#[derive(Debug)]
pub(super) struct Container {
    kind: Kind,
    image: String,
    orders: Option<tokio::sync::mpsc::UnboundedSender<(Order, Answer)>>,
    thread: Option<JoinHandle<()>>,
    /// Removes the container when this program is gone, as the supervisor of a process does.
    watcher: Option<Child>,
}

enum Order {
    Stop(Duration),
    Start,
    Pause,
    Resume,
    Logs,
}

type Answer = mpsc::Sender<Result<String, String>>;

impl Container {
    /// Makes and starts a container whose server is reached at this port of 127.0.0.1. It may not serve yet.
    pub(super) fn start(setup: &Setup, port: u16) -> Result<Self, Error> {
        let kind = setup.kind;
        let (official, inside) = match kind {
            Kind::Postgres => ("postgres:17", 5432),
            Kind::MariaDb => ("mariadb:11.8", 3306),
            Kind::Redis => ("redis:8", 6379),
            Kind::Etcd | Kind::ZooKeeper => {
                return Err(Error::missing(kind, "no image is known for it"));
            }
        };
        let image = kind.setting("IMAGE").unwrap_or_else(|| official.to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::io(kind, "make a runtime"))?;

        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let since = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap_or_default();
        let name = format!(
            "lock-test-{kind}-{}-{}-{number}",
            std::process::id(),
            since.as_millis()
        );
        let watcher = watch(&name);

        let (orders, mut told) = tokio::sync::mpsc::unbounded_channel::<(Order, Answer)>();
        let (answer, started) = mpsc::channel();
        let (setup, wanted) = (setup.clone(), image.clone());
        let thread = std::thread::Builder::new()
            .name(format!("container {kind}"))
            .spawn(move || {
                runtime.block_on(async move {
                    let container = match begin(&setup, &wanted, inside, port, name).await {
                        Ok(container) => container,
                        // The other side waits for it, so it is there.
                        Err(error) => return drop(answer.send(Err(error))),
                    };
                    drop(answer.send(Ok(())));
                    while let Some((order, answer)) = told.recv().await {
                        let done = obey(&container, order).await;
                        drop(answer.send(done.map_err(|error| error.to_string())));
                    }
                    // What fails here is left to the watcher.
                    drop(container.rm().await);
                });
            })
            .map_err(Error::io(kind, "start a thread"))?;
        let this = Self {
            kind,
            image,
            orders: Some(orders),
            thread: Some(thread),
            watcher,
        };
        match started.recv() {
            Ok(Ok(())) => Ok(this),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::failed(kind, "the container's thread ended early")),
        }
    }

    pub(super) fn image(&self) -> &str {
        &self.image
    }

    fn order(&self, what: &str, order: Order) -> Result<String, Error> {
        let (answer, done) = mpsc::channel();
        let sent = self
            .orders
            .as_ref()
            .map(|orders| orders.send((order, answer)));
        let done = match sent {
            Some(Ok(())) => done
                .recv()
                .unwrap_or_else(|_| Err("its thread is gone".into())),
            _ => Err("its thread is gone".into()),
        };
        done.map_err(|error| Error::failed(self.kind, format!("{what} the container: {error}")))
    }

    /// Asks the server to end, and kills it when it has not within `patience`.
    pub(super) fn stop(&self, patience: Duration) -> Result<(), Error> {
        self.order("stop", Order::Stop(patience)).map(drop)
    }

    pub(super) fn start_again(&self) -> Result<(), Error> {
        self.order("start", Order::Start).map(drop)
    }

    pub(super) fn pause(&self) -> Result<(), Error> {
        self.order("pause", Order::Pause).map(drop)
    }

    pub(super) fn resume(&self) -> Result<(), Error> {
        self.order("resume", Order::Resume).map(drop)
    }

    pub(super) fn logs(&self) -> Result<String, Error> {
        self.order("read the logs of", Order::Logs)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed by it.
            let _ = thread.join();
        }
        if let Some(mut watcher) = self.watcher.take() {
            // It looks once more, finds nothing to remove, and ends.
            drop(watcher.stdin.take());
            let _ = watcher.wait();
        }
    }
}

/// Removes the container when standard input ends, with the engine's own program. `None` without that program: then
/// a test program that is killed leaves its containers.
fn watch(name: &str) -> Option<Child> {
    use std::os::unix::process::CommandExt;

    let there = Command::new("docker")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    there.ok().filter(std::process::ExitStatus::success)?;
    Command::new("/bin/sh")
        .args([
            "-c",
            "read -r _; exec docker rm -f -v \"$1\"",
            "watcher",
            name,
        ])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()
}

async fn begin(
    setup: &Setup,
    image: &str,
    inside: u16,
    port: u16,
    name: String,
) -> Result<ContainerAsync<GenericImage>, Error> {
    let kind = setup.kind;
    // Looked for first: testcontainers fetches an image that is not there, which may take for ever.
    let engine = Docker::connect_with_local_defaults()
        .map_err(|error| Error::missing(kind, format!("no container engine: {error}")))?;
    match engine.inspect_image(image).await {
        Ok(_) => {}
        Err(bollard::errors::Error::DockerResponseServerError {
            status_code: 404, ..
        }) => {
            let message = format!(
                "no image {image} on this machine: docker pull {image}, or scripts/make-images {kind} and {}",
                kind.variable("IMAGE")
            );
            return Err(Error::missing(kind, message));
        }
        Err(error) => {
            return Err(Error::missing(
                kind,
                format!("no container engine answers: {error}"),
            ));
        }
    }
    let (repository, tag) = match image.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, tag),
        _ => (image, "latest"),
    };
    let environment: &[(&str, &str)] = match kind {
        Kind::Postgres => &[("POSTGRES_HOST_AUTH_METHOD", "trust")],
        Kind::MariaDb => &[
            ("MARIADB_ALLOW_EMPTY_ROOT_PASSWORD", "1"),
            ("MARIADB_DATABASE", DATABASE),
        ],
        _ => &[],
    };
    let mut words = setup.words();
    match kind {
        Kind::MariaDb => words.push("--skip-name-resolve".into()),
        Kind::Redis => words.extend(["--protected-mode".into(), "no".into()]),
        _ => {}
    }
    let mut request = GenericImage::new(repository, tag)
        .with_exposed_port(ContainerPort::Tcp(inside))
        .with_cmd(words)
        .with_container_name(name)
        // A port that is ours to name stays over a restart; and 127.0.0.1, where the engine's default is every address.
        .with_host_config_modifier(move |host| {
            let binding = PortBinding {
                host_ip: Some("127.0.0.1".into()),
                host_port: Some(port.to_string()),
            };
            host.publish_all_ports = Some(false);
            host.port_bindings = Some(HashMap::from([(
                format!("{inside}/tcp"),
                Some(vec![binding]),
            )]));
        });
    for (variable, value) in environment {
        request = request.with_env_var(*variable, *value);
    }
    let started = request.start().await;
    started.map_err(|error| Error::failed(kind, format!("start a container of {image}: {error}")))
}

async fn obey(
    container: &ContainerAsync<GenericImage>,
    order: Order,
) -> testcontainers::core::error::Result<String> {
    match order {
        Order::Stop(patience) => {
            let seconds = i32::try_from(patience.as_secs()).unwrap_or(i32::MAX);
            container.stop_with_timeout(Some(seconds)).await?;
        }
        Order::Start => container.start().await?,
        Order::Pause => container.pause().await?,
        Order::Resume => container.unpause().await?,
        Order::Logs => {
            let mut log = container.stdout_to_vec().await?;
            log.extend(container.stderr_to_vec().await?);
            return Ok(String::from_utf8_lossy(&log).into_owned());
        }
    }
    Ok(String::new())
}
