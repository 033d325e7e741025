//! Benchmarks against the native operation. They print numbers and check none.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use link::http2::{Client, Windows};
use protocol::control::VERSION;
use protocol::files::{READ, ReadRange};
use protocol::rpc::control_client::ControlClient;
use protocol::rpc::files_client::FilesClient;
use protocol::rpc::{HelloRequest, OpenRequest};
use proxy::FileBackend;

use crate::environment::Environment;

fn median(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..201)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[100]
}

#[test]
#[ignore = "needs root"]
fn file_latencies() {
    let env = Environment::new(FileBackend::Fuse);
    env.write("small", vec![b'x'; 4096]);
    env.write("large", vec![b'x'; 64 << 20]);
    let mut bytes = vec![0; 4096];
    let request = median(|| {
        let _ = env.files().file_system(&env.path("small"));
    });
    println!("one request                     {request:?}");
    let open = median(|| {
        let file = env.open("small", libc::O_RDONLY).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
    });
    println!("open, read 4 KiB, close         {open:?}");
    let stat = median(|| {
        env.files().metadata(&env.path("small"), true).unwrap();
    });
    println!("stat, repeated                  {stat:?}");
    let file = env.open("large", libc::O_RDONLY).unwrap();
    let native = File::open(env.path("large")).unwrap();
    let mut again = |file: &File| median(|| file.read_exact_at(&mut bytes, 4096).unwrap());
    println!(
        "read 4 KiB again                {:?}, native {:?}",
        again(&file),
        again(&native)
    );
}

#[test]
#[ignore = "needs root"]
fn read_throughput() {
    for milliseconds in [0, 5] {
        let round_trip = Duration::from_millis(milliseconds);
        let env = Environment::with_latency(FileBackend::Fuse, round_trip);
        env.write("large", vec![b'x'; SIZE]);
        let raw = env.runtime.block_on(raw_transfer(&env, round_trip));
        let first = rate(|| read_all(env.open("large", libc::O_RDONLY).unwrap()));
        let again = rate(|| read_all(env.open("large", libc::O_RDONLY).unwrap()));
        println!("{milliseconds} ms: {first:.0} MiB/s, raw HTTP/2 {raw:.0}, again {again:.0}");
    }
}

const SIZE: usize = 64 << 20;

fn rate(work: impl FnOnce() -> usize) -> f64 {
    let start = Instant::now();
    assert_eq!(work(), SIZE);
    64.0 / start.elapsed().as_secs_f64()
}

fn read_all(mut file: File) -> usize {
    let mut part = vec![0; 128 * 1024];
    let mut read = 0;
    loop {
        match file.read(&mut part).unwrap() {
            0 => return read,
            count => read += count,
        }
    }
}

/// Reads the file over one HTTP/2 stream and discards its bytes.
async fn raw_transfer(env: &Environment, round_trip: Duration) -> f64 {
    let pipe = crate::environment::agent(env.target.id(), round_trip);
    let mut client = Client::start(pipe, Windows::default()).await.unwrap();
    let hello = HelloRequest {
        version: Some(VERSION),
        ..HelloRequest::default()
    };
    let mut control = ControlClient::new(client.clone());
    control.hello(hello).await.unwrap();
    let path = env.path("large").into_os_string().into_encoded_bytes();
    let start = Instant::now();
    let request = OpenRequest {
        path: path.into(),
        ..OpenRequest::default()
    };
    let opened = FilesClient::new(client.clone()).open(request).await;
    let range = ReadRange {
        handle: opened.unwrap().into_inner().handle,
        offset: 0,
        length: SIZE as u64,
    };
    let request = http::Request::post(READ).body(Empty::<Bytes>::new());
    let mut request = request.unwrap();
    request.headers_mut().extend(range.to_headers());
    let mut body = client.send(request).await.unwrap().into_body();
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        read += frame.unwrap().into_data().map_or(0, |data| data.len());
    }
    assert_eq!(read, SIZE);
    64.0 / start.elapsed().as_secs_f64()
}
