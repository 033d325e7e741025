//! Benchmarks splitting on this machine against a plain HTTP proxy and a plain TCP relay:
//! `cargo run --release --example measure -- 2`, where 2 is the duration of each measurement in seconds.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark program prints its results, and stops when it fails"
)]

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use splitter::{
    BoxFuture, BoxStream, Claim, ConnectionMeta, Destination, Filter, Mode, NoticeHandler,
    OnConflict, Port, Settings,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

const RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n\
    0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";
const UNMATCHED: &str = "GET /items?page=7 HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: measure/1\r\n\
    Accept: */*\r\nAccept-Encoding: gzip\r\nCookie: session=0123456789abcdef\r\n\r\n";
const MATCHED: &str = "GET /items?page=7 HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: measure/1\r\n\
    Accept: */*\r\nAccept-Encoding: gzip\r\nX-Session: alice\r\n\r\n";
const CONNECTIONS: usize = 64;
const ROUNDS: usize = 3;

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let duration = Duration::from_secs_f64(seconds.unwrap_or(2.0));
    // The measured code has its own thread, so that its CPU time can be told from that of the others.
    let others = runtime("others");
    let measured = runtime("measured");
    let application = others.block_on(listen(|stream| async move {
        let _ = respond(stream).await;
    }));
    let sink = others.block_on(listen(|mut stream| async move {
        let mut buffer = vec![0; 256 * 1024];
        while stream
            .read(&mut buffer)
            .await
            .is_ok_and(|length| length > 0)
        {}
    }));
    let setups = setups(&measured, application, sink);
    let requests: Vec<Vec<LoadResult>> = (0..ROUNDS)
        .map(|_| {
            setups
                .iter()
                .map(|setup| {
                    others.block_on(load(setup.address, setup.request, CONNECTIONS, duration))
                })
                .collect()
        })
        .collect();
    let single: Vec<LoadResult> = setups
        .iter()
        .map(|setup| others.block_on(load(setup.address, setup.request, 1, duration)))
        .collect();
    println!(
        "{:34} {:>9} {:>6} {:>10} | one connection: {:>8} {:>8}",
        "", "requests/s", "", "CPU/request", "p50", "p99"
    );
    for (index, setup) in setups.iter().enumerate() {
        let best = |pick: fn(&LoadResult) -> f64| {
            let mut all: Vec<f64> = requests.iter().map(|round| pick(&round[index])).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let of = |pick: fn(&LoadResult) -> f64| {
            let mut all: Vec<f64> = requests
                .iter()
                .map(|round| pick(&round[index]) / pick(&round[setup.baseline]))
                .collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2] * 100.0
        };
        println!(
            "{:34} {:9.0} {:4.0} % {:7.1} µs | {:24.0?} {:8.0?}",
            setup.name,
            best(|seen| seen.per_second),
            of(|seen| seen.per_second),
            best(|seen| seen.cpu_per_request) * 1e6,
            single[index].p50,
            single[index].p99
        );
    }
    println!();
    let bulk: Vec<Vec<f64>> = (0..ROUNDS)
        .map(|_| {
            setups
                .iter()
                .filter_map(|setup| setup.bulk)
                .map(|address| others.block_on(upload(address, duration)))
                .collect()
        })
        .collect();
    for (index, setup) in setups
        .iter()
        .filter(|setup| setup.bulk.is_some())
        .enumerate()
    {
        let mut speeds: Vec<f64> = bulk.iter().map(|round| round[index]).collect();
        let mut ratios: Vec<f64> = bulk.iter().map(|round| round[index] / round[0]).collect();
        speeds.sort_by(f64::total_cmp);
        ratios.sort_by(f64::total_cmp);
        println!(
            "{:34} {:9.0} MiB/s {:4.0} % of the relay",
            setup.name,
            speeds[1] / f64::from(1 << 20),
            ratios[1] * 100.0
        );
    }
}

/// A setup between a client and the application.
struct Setup {
    name: &'static str,
    address: SocketAddr,
    request: &'static str,
    /// The index of the setup that it is compared with.
    baseline: usize,
    /// The same setup in front of a sink.
    bulk: Option<SocketAddr>,
}

fn setups(measured: &Runtime, application: SocketAddr, sink: SocketAddr) -> Vec<Setup> {
    let setup = |name, address, request, baseline, bulk| Setup {
        name,
        address,
        request,
        baseline,
        bulk,
    };
    measured.block_on(async {
        let relay = relay_to(application).await;
        let proxy = proxy_to(application).await;
        let mut setups = vec![
            setup("direct", application, UNMATCHED, 0, None),
            setup("plain HTTP proxy (hyper)", proxy, UNMATCHED, 1, None),
            setup(
                "plain TCP relay",
                relay,
                UNMATCHED,
                2,
                Some(relay_to(sink).await),
            ),
        ];
        let header = || Some(Filter::header("^x-session: alice$").unwrap());
        let lookahead = Some(Filter::header("^x-session: (?!bob)alice$").unwrap());
        let steal = |filter| split_to(application, Mode::Steal, filter, application);
        setups.push(setup(
            "split, not matched",
            steal(header()).await,
            UNMATCHED,
            1,
            None,
        ));
        setups.push(setup(
            "split, not matched, look-around",
            steal(lookahead).await,
            UNMATCHED,
            1,
            None,
        ));
        setups.push(setup(
            "split, stolen",
            steal(header()).await,
            MATCHED,
            1,
            None,
        ));
        for (name, mirror) in [
            ("mirrored", sink),
            (
                "mirrored, unreachable",
                SocketAddr::from(([127, 0, 0, 1], 9)),
            ),
        ] {
            let requests = split_to(application, Mode::Mirror, None, mirror).await;
            let bulk = split_to(sink, Mode::Mirror, None, mirror).await;
            setups.push(setup(name, requests, UNMATCHED, 2, Some(bulk)));
        }
        let stuck = stuck().await;
        let requests = split_to(application, Mode::Mirror, None, stuck).await;
        let bulk = split_to(sink, Mode::Mirror, None, stuck).await;
        setups.push(setup(
            "mirrored, stalled",
            requests,
            UNMATCHED,
            2,
            Some(bulk),
        ));
        setups
    })
}

fn runtime(name: &'static str) -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(name)
        .enable_all()
        .build()
        .unwrap()
}

async fn listen<F, W>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> W + Send + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// A minimal application.
async fn respond(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    let mut filled = 0;
    loop {
        let length = stream.read(&mut buffer[filled..]).await?;
        if length == 0 {
            return Ok(());
        }
        filled += length;
        if buffer[..filled].ends_with(b"\r\n\r\n") {
            stream.write_all(RESPONSE.as_bytes()).await?;
            filled = 0;
        }
    }
}

async fn stuck() -> SocketAddr {
    listen(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await
}

async fn relay_to(server: SocketAddr) -> SocketAddr {
    listen(move |mut client| async move {
        let mut server = TcpStream::connect(server).await.unwrap();
        server.set_nodelay(true).unwrap();
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    })
    .await
}

async fn proxy_to(server: SocketAddr) -> SocketAddr {
    listen(move |client| async move {
        let stream = TcpStream::connect(server).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (send, connection) =
            hyper::client::conn::http1::handshake::<_, hyper::body::Incoming>(TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let send = Arc::new(tokio::sync::Mutex::new(send));
        let service = service_fn(move |request| {
            let send = send.clone();
            async move { send.lock().await.send_request(request).await }
        });
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(client), service)
            .await;
    })
    .await
}

async fn split_to(
    server: SocketAddr,
    mode: Mode,
    filter: Option<Filter>,
    session: SocketAddr,
) -> SocketAddr {
    let port = Arc::new(Port::new(Arc::new(Tcp(server)), Settings::default()));
    let claim = Claim {
        holder: "measure".to_owned(),
        owner: None,
        age: Duration::ZERO,
        mode,
        filter,
        takes_probes: false,
        response_timeout: None,
        tls: None,
        on_notice: NoticeHandler::default(),
        destination: Arc::new(Tcp(session)),
    };
    let guard = Arc::new(port.claims().claim(claim, OnConflict::Abort).unwrap());
    listen(move |client| {
        let (port, guard) = (port.clone(), guard.clone());
        async move {
            let meta = ConnectionMeta {
                client: client.peer_addr().unwrap(),
                server: client.local_addr().unwrap(),
                tls: None,
            };
            port.serve(Box::new(client), meta).await;
            drop(guard);
        }
    })
    .await
}

struct Tcp(SocketAddr);

impl Destination for Tcp {
    fn open<'a>(&'a self, _: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async {
            let stream = TcpStream::connect(self.0).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as BoxStream)
        })
    }
}

/// The results of a load test.
struct LoadResult {
    per_second: f64,
    cpu_per_request: f64,
    p50: Duration,
    p99: Duration,
}

async fn load(
    address: SocketAddr,
    request: &'static str,
    connections: usize,
    duration: Duration,
) -> LoadResult {
    let (started, cpu_before) = (Instant::now(), cpu_time());
    let clients: Vec<_> = (0..connections)
        .map(|_| {
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                let mut response = vec![0; RESPONSE.len() + 512];
                let mut times = Vec::new();
                while started.elapsed() < duration {
                    let started_request = Instant::now();
                    stream.write_all(request.as_bytes()).await.unwrap();
                    let mut filled = 0;
                    while !response[..filled].ends_with(b"0123456789") {
                        let length = stream.read(&mut response[filled..]).await.unwrap();
                        assert!(length > 0, "the connection was closed");
                        filled += length;
                    }
                    times.push(started_request.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for client in clients {
        times.extend(client.await.unwrap());
    }
    let elapsed = started.elapsed();
    let cpu = cpu_time() - cpu_before;
    times.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "it is a count of requests")]
    let count = times.len() as f64;
    LoadResult {
        per_second: count / elapsed.as_secs_f64(),
        cpu_per_request: cpu / count,
        p50: times[times.len() / 2],
        p99: times[times.len() * 99 / 100],
    }
}

/// Bytes per second that can be sent on one connection.
async fn upload(address: SocketAddr, duration: Duration) -> f64 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let part = vec![0; 256 * 1024];
    let (started, mut sent) = (Instant::now(), 0.0);
    while started.elapsed() < duration {
        stream.write_all(&part).await.unwrap();
        sent += 256.0 * 1024.0;
    }
    sent / started.elapsed().as_secs_f64()
}

/// CPU time of the measured thread, in seconds.
fn cpu_time() -> f64 {
    let mut ticks = 0.0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        if stat.contains("(measured)") {
            let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
            let of = |index: usize| fields[index].parse::<f64>().unwrap();
            ticks += of(11) + of(12);
        }
    }
    ticks / 100.0
}
