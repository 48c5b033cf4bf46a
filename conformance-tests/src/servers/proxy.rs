//! A TCP proxy on loopback that can misbehave as networks do.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// One of the two ways through a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// What clients send.
    ToServer,
    /// What the server answers.
    ToClient,
}

/// What becomes of the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flow {
    /// They go through.
    #[default]
    Pass,
    /// They wait, and go through when this ends: a network that loses packets, which TCP then sends again. The end of
    /// a connection waits as well.
    Hold,
    /// They are lost for good; the connections stay open.
    Swallow,
}

#[derive(Debug, Clone, Copy, Default)]
struct Orders {
    flow: [Flow; 2],
    delay: [Duration; 2],
    refuse: bool,
    /// Counted up by each order; a connection heeds those given after it was made.
    cut: u64,
    reset: u64,
    forsake: [u64; 2],
    over: bool,
}

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    open: AtomicU64,
    bytes: [AtomicU64; 2],
    swallow_answer: AtomicBool,
}

/// A proxy before one server, with a thread of its own, so that a blocked test does not block the network.
///
/// Orders hold for connections that exist and for new ones, until changed or [`heal`](Self::heal)ed; those that end
/// connections ([`cut`](Self::cut), [`reset`](Self::reset), [`forsake`](Self::forsake)) only for those that exist.
/// Dropping it cuts everything.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    orders: watch::Sender<Orders>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1, and passes connections on to this port of 127.0.0.1.
    ///
    /// # Errors
    /// The port or the thread cannot be had.
    pub fn start(server_port: u16) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (orders, told) = watch::channel(Orders::default());
        let counts = Arc::new(Counts::default());
        let counted = Arc::clone(&counts);
        let thread = std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || runtime.block_on(accept(listener, server_port, told, counted)))?;
        Ok(Self {
            port,
            orders,
            counts,
            thread: Some(thread),
        })
    }

    /// Its port of 127.0.0.1.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        self.orders.send_modify(change);
    }

    /// Says what becomes of the bytes of one direction. Holding both is a black hole: new connections are taken, as
    /// by a listener's queue, and get no answer.
    pub fn set_flow(&self, direction: Direction, flow: Flow) {
        self.order(|orders| orders.flow[direction as usize] = flow);
    }

    /// Holds both directions.
    pub fn black_hole(&self) {
        self.order(|orders| orders.flow = [Flow::Hold; 2]);
    }

    /// Makes each byte of one direction arrive this much later. Throughput stays.
    pub fn set_delay(&self, direction: Direction, delay: Duration) {
        self.order(|orders| orders.delay[direction as usize] = delay);
    }

    /// Closes all connections, both sides.
    pub fn cut(&self) {
        self.order(|orders| orders.cut += 1);
    }

    /// Ends all connections with a reset, both sides.
    pub fn reset(&self) {
        self.order(|orders| {
            orders.reset += 1;
            orders.cut += 1;
        });
    }

    /// Closes new connections at once, or no longer.
    pub fn refuse(&self, refuse: bool) {
        self.order(|orders| orders.refuse = refuse);
    }

    /// Half-opens all connections: the end that sends in this direction keeps its own open and hears nothing; the
    /// other end's is closed. `ToServer`: as if the server's machine had lost power, the client is not told.
    pub fn forsake(&self, sender: Direction) {
        self.order(|orders| orders.forsake[sender as usize] += 1);
    }

    /// Lets one more request through, throws its answer away, and closes that connection: the request took effect,
    /// and the client cannot know. Send no other request meanwhile: the first answer to arrive is the one.
    pub fn swallow_next_answer(&self) {
        self.counts.swallow_answer.store(true, Ordering::SeqCst);
    }

    /// Whether [`swallow_next_answer`](Self::swallow_next_answer) still waits for an answer.
    #[must_use]
    pub fn is_swallowing(&self) -> bool {
        self.counts.swallow_answer.load(Ordering::SeqCst)
    }

    /// Passes everything again, at once. Connections that were ended stay ended.
    pub fn heal(&self) {
        self.counts.swallow_answer.store(false, Ordering::SeqCst);
        self.order(|orders| {
            orders.flow = [Flow::Pass; 2];
            orders.delay = [Duration::ZERO; 2];
            orders.refuse = false;
        });
    }

    /// Connections taken so far, refused ones included.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    /// Connections open now.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.counts.open.load(Ordering::SeqCst)
    }

    /// Bytes that went through in one direction so far.
    #[must_use]
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.counts.bytes[direction as usize].load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.order(|orders| orders.over = true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed by it.
            let _ = thread.join();
        }
    }
}

async fn accept(
    listener: TcpListener,
    server_port: u16,
    mut orders: watch::Receiver<Orders>,
    counts: Arc<Counts>,
) {
    // Tasks still there when this ends are dropped with the runtime, and their connections with them.
    loop {
        let client = tokio::select! {
            biased;
            () = over(&mut orders) => return,
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => client,
                // Out of file handles, or a client that is gone already: the others go on.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
            },
        };
        counts.accepted.fetch_add(1, Ordering::SeqCst);
        if orders.borrow().refuse {
            continue;
        }
        counts.open.fetch_add(1, Ordering::SeqCst);
        let (orders, counts) = (orders.clone(), Arc::clone(&counts));
        tokio::spawn(async move {
            // An end that breaks off is what a proxy is for: the other end sees it, and nobody else needs to.
            let _ = serve(client, server_port, orders, &counts).await;
            counts.open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// Waits until the proxy is dropped.
async fn over(orders: &mut watch::Receiver<Orders>) {
    // An error says that the sender is gone, which comes to the same.
    let _ = orders.wait_for(|orders| orders.over).await;
}

/// Why the passing of bytes ended.
enum End {
    /// Both ends had said all they had to say.
    Over,
    Cut,
    Forsaken(Direction),
}

async fn serve(
    client: TcpStream,
    server_port: u16,
    mut orders: watch::Receiver<Orders>,
    counts: &Counts,
) -> io::Result<()> {
    let made = *orders.borrow();
    client.set_nodelay(true)?;
    // A request to connect is held up like all that goes to the server.
    let reached = async {
        let mut open = orders.clone();
        let passes = |orders: &Orders| orders.flow[Direction::ToServer as usize] == Flow::Pass;
        open.wait_for(passes).await.map_err(io::Error::other)?;
        TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, server_port))).await
    };
    let mut early = orders.clone();
    let server = tokio::select! {
        biased;
        end = ended(&mut early, made) => {
            if orders.borrow().reset > made.reset {
                client.set_zero_linger()?;
            }
            if let End::Forsaken(Direction::ToServer) = end {
                return drain(client, orders, made).await;
            }
            return Ok(());
        }
        server = reached => server?,
    };
    server.set_nodelay(true)?;

    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let end = {
        let up = pump(
            Direction::ToServer,
            &mut from_client,
            &mut to_server,
            &orders,
            counts,
        );
        let down = pump(
            Direction::ToClient,
            &mut from_server,
            &mut to_client,
            &orders,
            counts,
        );
        let mut heed = orders.clone();
        tokio::select! {
            biased;
            end = ended(&mut heed, made) => end,
            both = async { tokio::try_join!(up, down) } => both.map_or(End::Cut, |_| End::Over),
        }
    };
    let whole =
        |read: OwnedReadHalf, write: OwnedWriteHalf| read.reunite(write).map_err(io::Error::other);
    let client = whole(from_client, to_client)?;
    let server = whole(from_server, to_server)?;
    if orders.borrow_and_update().reset > made.reset {
        client.set_zero_linger()?;
        server.set_zero_linger()?;
    }
    let kept = match end {
        End::Over | End::Cut => return Ok(()),
        End::Forsaken(Direction::ToServer) => {
            drop(server);
            client
        }
        End::Forsaken(Direction::ToClient) => {
            drop(client);
            server
        }
    };
    drain(kept, orders, made).await
}

/// Waits for an order that ends connections made before it.
async fn ended(orders: &mut watch::Receiver<Orders>, made: Orders) -> End {
    let forsaken = |orders: &Orders, direction: Direction| {
        orders.forsake[direction as usize] > made.forsake[direction as usize]
    };
    let either = |orders: &Orders| {
        orders.cut > made.cut
            || forsaken(orders, Direction::ToServer)
            || forsaken(orders, Direction::ToClient)
    };
    match orders.wait_for(either).await {
        Ok(orders) if orders.cut > made.cut => End::Cut,
        Ok(orders) if forsaken(&orders, Direction::ToServer) => End::Forsaken(Direction::ToServer),
        Ok(_) => End::Forsaken(Direction::ToClient),
        Err(_) => End::Cut,
    }
}

/// Takes what a forsaken end sends, and answers nothing, until it goes or is cut off.
async fn drain(
    mut stream: TcpStream,
    mut orders: watch::Receiver<Orders>,
    made: Orders,
) -> io::Result<()> {
    let mut lost = [0; 4096];
    loop {
        tokio::select! {
            biased;
            _ = orders.wait_for(|orders| orders.cut > made.cut) => return Ok(()),
            read = stream.read(&mut lost) => if read? == 0 { return Ok(()) },
        }
    }
}

/// Passes one direction on, with delay, until its end.
///
/// # Errors
/// An end broke off, or the answer was to be swallowed: the connection is to be closed.
async fn pump(
    direction: Direction,
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    orders: &watch::Receiver<Orders>,
    counts: &Counts,
) -> io::Result<()> {
    let way = direction as usize;
    // Bounded, so that a held direction pushes back as a full socket does.
    let (queue, mut queued) = mpsc::channel::<(Instant, Vec<u8>)>(64);
    let read = async {
        let queue = queue; // ends the queue with the reading
        let mut part = vec![0; 16 << 10];
        loop {
            let n = from.read(&mut part).await?;
            if n == 0 {
                return Ok(());
            }
            if direction == Direction::ToClient
                && counts.swallow_answer.swap(false, Ordering::SeqCst)
            {
                return Err(io::Error::other("answer swallowed"));
            }
            let due = Instant::now() + orders.borrow().delay[way];
            if queue.send((due, part[..n].to_vec())).await.is_err() {
                return Ok(());
            }
        }
    };
    let mut told = orders.clone();
    let write = async {
        while let Some((due, bytes)) = queued.recv().await {
            tokio::time::sleep_until(due).await;
            let flow = {
                let open = told.wait_for(|orders| orders.flow[way] != Flow::Hold).await;
                open.map_err(io::Error::other)?.flow[way]
            };
            if flow == Flow::Pass {
                to.write_all(&bytes).await?;
                counts.bytes[way].fetch_add(bytes.len() as u64, Ordering::SeqCst);
            }
        }
        let passes = |orders: &Orders| orders.flow[way] == Flow::Pass;
        told.wait_for(passes).await.map_err(io::Error::other)?;
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(|_| ())
}
