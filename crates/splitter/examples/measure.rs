//! Prints what splitting costs on this machine, beside a plain proxy and a plain relay in the same place:
//! `cargo run --release --example measure -- 2`, where 2 is the seconds for each measure.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it is a program that measures: this is its output, and where it fails it should stop"
)]

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use splitter::{
    Arrival, BoxFuture, BoxStream, Claim, Destination, Filter, Mode, Notices, OnConflict, Port,
    Settings,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n\
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
    // What is measured has a thread of its own, so that its time can be told from the others'.
    let others = runtime("others");
    let measured = runtime("measured");
    let application = others.block_on(listen(|stream| async move {
        let _ = answer(stream).await;
    }));
    let sink = others.block_on(listen(|mut stream| async move {
        let mut buffer = vec![0; 256 * 1024];
        while stream
            .read(&mut buffer)
            .await
            .is_ok_and(|length| length > 0)
        {}
    }));
    let ways = ways(&measured, application, sink);
    let requests: Vec<Vec<Seen>> = (0..ROUNDS)
        .map(|_| {
            ways.iter()
                .map(|way| others.block_on(load(way.address, way.request, CONNECTIONS, duration)))
                .collect()
        })
        .collect();
    let single: Vec<Seen> = ways
        .iter()
        .map(|way| others.block_on(load(way.address, way.request, 1, duration)))
        .collect();
    println!(
        "{:34} {:>9} {:>6} {:>10} | one connection: {:>8} {:>8}",
        "", "requests/s", "", "CPU/request", "p50", "p99"
    );
    for (index, way) in ways.iter().enumerate() {
        let best = |pick: fn(&Seen) -> f64| {
            let mut all: Vec<f64> = requests.iter().map(|round| pick(&round[index])).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let of = |pick: fn(&Seen) -> f64| {
            let mut all: Vec<f64> = requests
                .iter()
                .map(|round| pick(&round[index]) / pick(&round[way.baseline]))
                .collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2] * 100.0
        };
        println!(
            "{:34} {:9.0} {:4.0} % {:7.1} µs | {:24.0?} {:8.0?}",
            way.name,
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
            ways.iter()
                .filter_map(|way| way.bulk)
                .map(|address| others.block_on(upload(address, duration)))
                .collect()
        })
        .collect();
    for (index, way) in ways.iter().filter(|way| way.bulk.is_some()).enumerate() {
        let mut speeds: Vec<f64> = bulk.iter().map(|round| round[index]).collect();
        let mut ratios: Vec<f64> = bulk.iter().map(|round| round[index] / round[0]).collect();
        speeds.sort_by(f64::total_cmp);
        ratios.sort_by(f64::total_cmp);
        println!(
            "{:34} {:9.0} MiB/s {:4.0} % of the relay",
            way.name,
            speeds[1] / f64::from(1 << 20),
            ratios[1] * 100.0
        );
    }
}

/// A way from a client to the application.
struct Way {
    name: &'static str,
    address: SocketAddr,
    request: &'static str,
    /// The position of the way that it is compared with.
    baseline: usize,
    /// The same way in front of a sink.
    bulk: Option<SocketAddr>,
}

fn ways(measured: &Runtime, application: SocketAddr, sink: SocketAddr) -> Vec<Way> {
    let way = |name, address, request, baseline, bulk| Way {
        name,
        address,
        request,
        baseline,
        bulk,
    };
    measured.block_on(async {
        let relay = relay_to(application).await;
        let proxy = proxy_to(application).await;
        let mut ways = vec![
            way("direct", application, UNMATCHED, 0, None),
            way("plain HTTP proxy (hyper)", proxy, UNMATCHED, 1, None),
            way(
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
        ways.push(way(
            "split, not matched",
            steal(header()).await,
            UNMATCHED,
            1,
            None,
        ));
        ways.push(way(
            "split, not matched, looking around",
            steal(lookahead).await,
            UNMATCHED,
            1,
            None,
        ));
        ways.push(way(
            "split, stolen",
            steal(header()).await,
            MATCHED,
            1,
            None,
        ));
        for (name, copy) in [
            ("mirrored", sink),
            ("mirrored to nobody", SocketAddr::from(([127, 0, 0, 1], 9))),
        ] {
            let requests = split_to(application, Mode::Mirror, None, copy).await;
            let bulk = split_to(sink, Mode::Mirror, None, copy).await;
            ways.push(way(name, requests, UNMATCHED, 2, Some(bulk)));
        }
        let stuck = stuck().await;
        let requests = split_to(application, Mode::Mirror, None, stuck).await;
        let bulk = split_to(sink, Mode::Mirror, None, stuck).await;
        ways.push(way(
            "mirrored to somebody stuck",
            requests,
            UNMATCHED,
            2,
            Some(bulk),
        ));
        ways
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

/// An application that is as fast as can be.
async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    let mut filled = 0;
    loop {
        let length = stream.read(&mut buffer[filled..]).await?;
        if length == 0 {
            return Ok(());
        }
        filled += length;
        if buffer[..filled].ends_with(b"\r\n\r\n") {
            stream.write_all(ANSWER.as_bytes()).await?;
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
        held_for: Duration::ZERO,
        mode,
        filter,
        takes_probes: false,
        answer_within: None,
        tls: None,
        notices: Notices::default(),
        destination: Arc::new(Tcp(session)),
    };
    let guard = Arc::new(port.claims().claim(claim, OnConflict::Abort).unwrap());
    listen(move |client| {
        let (port, guard) = (port.clone(), guard.clone());
        async move {
            let arrival = Arrival {
                client: client.peer_addr().unwrap(),
                server: client.local_addr().unwrap(),
                tls: None,
            };
            port.serve(Box::new(client), arrival).await;
            drop(guard);
        }
    })
    .await
}

struct Tcp(SocketAddr);

impl Destination for Tcp {
    fn open<'a>(&'a self, _: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async {
            let stream = TcpStream::connect(self.0).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as BoxStream)
        })
    }
}

/// What was seen under load.
struct Seen {
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
) -> Seen {
    let (started, cpu_before) = (Instant::now(), cpu_time());
    let clients: Vec<_> = (0..connections)
        .map(|_| {
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                let mut answer = vec![0; ANSWER.len() + 512];
                let mut times = Vec::new();
                while started.elapsed() < duration {
                    let asked = Instant::now();
                    stream.write_all(request.as_bytes()).await.unwrap();
                    let mut filled = 0;
                    while !answer[..filled].ends_with(b"0123456789") {
                        let length = stream.read(&mut answer[filled..]).await.unwrap();
                        assert!(length > 0, "the connection was closed");
                        filled += length;
                    }
                    times.push(asked.elapsed());
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
    Seen {
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

/// Seconds that the measured thread has used.
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
