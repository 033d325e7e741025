//! Benchmarks of links: the same bytes over bare transports and over links on them, on the loopback interface.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tower_service::Service;

use crate::http2::{self, Client, Windows};
use crate::tls::{self, Identity, TlsAcceptor, TlsDialer, Trust};
use crate::{
    Accepted, Dial, Link, LinkError, LinkServer, Pipe, ServerSettings, Settings, SharedToken,
    TcpDialer, Token, set_tcp_options,
};

/// Size of a write and a read.
const BLOCK: usize = 256 * 1024;
/// Size of a part of an HTTP/2 body.
const BODY_PART: usize = 64 * 1024;

/// The best throughput of each stack, in bytes per second of one direction, and the median round-trip times of one byte.
#[derive(Debug, Clone, Default)]
pub struct Measurement {
    pub tcp: f64,
    pub link_over_tcp: f64,
    pub tls: f64,
    pub link_over_tls: f64,
    pub http2_over_tcp: f64,
    pub http2_over_link_over_tcp: f64,
    pub http2_over_tls: f64,
    pub http2_over_link_over_tls: f64,
    pub tcp_round_trip: Duration,
    pub link_over_tcp_round_trip: Duration,
}

/// Sends `bytes` over each stack in turn, in several rounds, and then echoes one byte `round_trips` times. Several rounds,
/// because other programs disturb a single run, and rarely all runs of one stack.
pub fn measure(bytes: u64, rounds: u32, round_trips: usize) -> Result<Measurement, LinkError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.map_err(unreachable_error)?.block_on(async {
        let setup = TestSetup::build().await?;
        let mut best = Measurement::default();
        for _ in 0..rounds {
            best.add_round(&setup, bytes).await?;
        }
        let (tcp, link) = (setup.tcp().await?, setup.link_over_tcp().await?);
        best.tcp_round_trip = median_round_trip(tcp, round_trips).await?;
        best.link_over_tcp_round_trip = median_round_trip(link, round_trips).await?;
        Ok(best)
    })
}

impl Measurement {
    async fn add_round(&mut self, setup: &TestSetup, bytes: u64) -> Result<(), LinkError> {
        let raise = |best: &mut f64, speed: f64| *best = best.max(speed);
        raise(&mut self.tcp, raw(setup.tcp().await?, bytes).await?);
        let link = setup.link_over_tcp().await?;
        raise(&mut self.link_over_tcp, raw(link, bytes).await?);
        raise(&mut self.tls, raw(setup.tls().await?, bytes).await?);
        let link = setup.link_over_tls().await?;
        raise(&mut self.link_over_tls, raw(link, bytes).await?);
        let tcp = setup.tcp().await?;
        raise(&mut self.http2_over_tcp, body(tcp, bytes).await?);
        let link = setup.link_over_tcp().await?;
        raise(&mut self.http2_over_link_over_tcp, body(link, bytes).await?);
        let tls = setup.tls().await?;
        raise(&mut self.http2_over_tls, body(tls, bytes).await?);
        let link = setup.link_over_tls().await?;
        raise(&mut self.http2_over_link_over_tls, body(link, bytes).await?);
        Ok(())
    }
}

/// Both ends of a connection.
type Ends = (Box<dyn Pipe>, Box<dyn Pipe>);

/// A listener, and the configuration of both ends.
struct TestSetup {
    listener: TcpListener,
    dialer: TcpDialer,
    tls_dialer: TlsDialer<TcpDialer>,
    acceptor: TlsAcceptor,
    server: LinkServer<SharedToken>,
}

impl TestSetup {
    async fn build() -> Result<Self, LinkError> {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.map_err(unreachable_error)?;
        let address = listener.local_addr().map_err(unreachable_error)?;
        let dialer = TcpDialer::new(address);
        let identity = Identity::generate()?;
        let trust = Trust::Pinned(identity.fingerprint());
        let name = ServerName::IpAddress(address.ip().into());
        Ok(Self {
            listener,
            tls_dialer: TlsDialer::new(dialer.clone(), name, trust)?,
            dialer,
            acceptor: tls::acceptor(&identity)?,
            server: LinkServer::new(ServerSettings::default(), SharedToken(Token::default())),
        })
    }

    async fn tcp(&self) -> Result<Ends, LinkError> {
        let ends = tokio::try_join!(self.dialer.dial(), self.accept_tcp());
        let (near, far) = ends.map_err(unreachable_error)?;
        Ok((Box::new(near), Box::new(far)))
    }

    async fn tls(&self) -> Result<Ends, LinkError> {
        let ends = tokio::try_join!(self.tls_dialer.dial(), self.accept_tls());
        let (near, far) = ends.map_err(unreachable_error)?;
        Ok((Box::new(near), Box::new(far)))
    }

    async fn link_over_tcp(&self) -> Result<Ends, LinkError> {
        let accept = async {
            let pipe = self.accept_tcp().await.map_err(unreachable_error)?;
            self.accept_link(pipe).await
        };
        let connect = Link::connect(self.dialer.clone(), Settings::default());
        let (near, far) = tokio::try_join!(connect, accept)?;
        Ok((Box::new(near), Box::new(far)))
    }

    async fn link_over_tls(&self) -> Result<Ends, LinkError> {
        let accept = async {
            let pipe = self.accept_tls().await.map_err(unreachable_error)?;
            self.accept_link(pipe).await
        };
        let connect = Link::connect(self.tls_dialer.clone(), Settings::default());
        let (near, far) = tokio::try_join!(connect, accept)?;
        Ok((Box::new(near), Box::new(far)))
    }

    async fn accept_tcp(&self) -> io::Result<tokio::net::TcpStream> {
        let (stream, _) = self.listener.accept().await?;
        set_tcp_options(&stream)?;
        Ok(stream)
    }

    async fn accept_tls(&self) -> io::Result<impl Pipe> {
        self.acceptor.accept(self.accept_tcp().await?).await
    }

    async fn accept_link(&self, pipe: impl Pipe) -> Result<Link, LinkError> {
        match self.server.accept(pipe).await? {
            Accepted::New(link) => Ok(link),
            // Every link here is new.
            Accepted::Resumed(_) => Err(LinkError::StateLost),
        }
    }
}

/// Writes on one end and reads on the other.
async fn raw((mut near, mut far): Ends, bytes: u64) -> Result<f64, LinkError> {
    let start = Instant::now();
    let sender = tokio::spawn(async move {
        let block = vec![7; BLOCK];
        let mut left = bytes;
        while left > 0 {
            let length = left.min(BLOCK as u64);
            near.write_all(&block[..length as usize]).await?;
            left -= length;
        }
        near.shutdown().await?;
        // TLS servers send session tickets, and a connection that is closed with unread bytes is reset.
        tokio::io::copy(&mut near, &mut tokio::io::sink()).await
    });
    let receiver = tokio::spawn(async move {
        let mut block = vec![0; BLOCK];
        while far.read(&mut block).await? > 0 {}
        let elapsed = start.elapsed();
        far.shutdown().await?;
        io::Result::Ok(elapsed)
    });
    let (sent, received) = tokio::join!(sender, receiver);
    sent.map_err(io::Error::other)
        .flatten()
        .map_err(unreachable_error)?;
    let received = received.map_err(io::Error::other).flatten();
    Ok(bytes as f64 / received.map_err(unreachable_error)?.as_secs_f64())
}

/// Sends one HTTP/2 request with all the bytes in its body.
async fn body((near, far): Ends, bytes: u64) -> Result<f64, LinkError> {
    let windows = Windows::default();
    let serving = tokio::spawn(http2::serve(
        far,
        windows,
        DiscardBody,
        std::future::pending(),
    ));
    let mut client = Client::start(near, windows).await?;
    let start = Instant::now();
    let (mut sender, body) = http2::body(4);
    tokio::spawn(async move {
        let part = Bytes::from(vec![7; BODY_PART]);
        let mut left = bytes;
        while left > 0 {
            let length = left.min(BODY_PART as u64);
            if sender
                .send_data(part.slice(..length as usize))
                .await
                .is_err()
            {
                return;
            }
            left -= length;
        }
    });
    let request = Request::new(body);
    client.send(request).await?;
    let speed = bytes as f64 / start.elapsed().as_secs_f64();
    drop(client);
    if let Ok(served) = serving.await {
        served?;
    }
    Ok(speed)
}

/// Responds after it has read the whole body.
#[derive(Clone)]
struct DiscardBody;

impl Service<Request<Incoming>> for DiscardBody {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        Box::pin(async move {
            let mut body = request.into_body();
            while let Some(Ok(_)) = body.frame().await {}
            Ok(Response::new(Empty::new()))
        })
    }
}

async fn median_round_trip((mut near, mut far): Ends, count: usize) -> Result<Duration, LinkError> {
    let echo = tokio::spawn(async move {
        let mut byte = [0];
        while far.read(&mut byte).await? > 0 {
            far.write_all(&byte).await?;
        }
        far.shutdown().await
    });
    let mut round_trips = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        near.write_all(&[7]).await.map_err(unreachable_error)?;
        let mut byte = [0];
        near.read_exact(&mut byte)
            .await
            .map_err(unreachable_error)?;
        round_trips.push(start.elapsed());
    }
    near.shutdown().await.map_err(unreachable_error)?;
    let echoed = echo.await.map_err(io::Error::other).flatten();
    echoed.map_err(unreachable_error)?;
    round_trips.sort_unstable();
    Ok(round_trips.get(count / 2).copied().unwrap_or_default())
}

fn unreachable_error(error: io::Error) -> LinkError {
    LinkError::Unreachable(Arc::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stack_carries_the_bytes() {
        let measured = measure(3_000_000, 2, 10).unwrap();
        assert!(measured.http2_over_link_over_tls > 0.0, "{measured:?}");
    }
}
