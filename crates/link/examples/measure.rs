//! Benchmarks links on this machine: `cargo run --release --example measure --features measure -- 512`.
#![expect(
    clippy::print_stdout,
    reason = "a benchmark program prints its results"
)]

fn main() -> Result<(), link::LinkError> {
    let mebibytes = std::env::args().nth(1).and_then(|count| count.parse().ok());
    let measured = link::measure::measure(mebibytes.unwrap_or(512_u64) << 20, 5, 5000)?;
    let speeds = [
        ("TCP", measured.tcp, measured.tcp),
        ("link over TCP", measured.link_over_tcp, measured.tcp),
        ("TLS", measured.tls, measured.tls),
        ("link over TLS", measured.link_over_tls, measured.tls),
        (
            "HTTP/2 over TCP",
            measured.http2_over_tcp,
            measured.http2_over_tcp,
        ),
        (
            "HTTP/2 over link over TCP",
            measured.http2_over_link_over_tcp,
            measured.http2_over_tcp,
        ),
        (
            "HTTP/2 over TLS",
            measured.http2_over_tls,
            measured.http2_over_tls,
        ),
        (
            "HTTP/2 over link over TLS",
            measured.http2_over_link_over_tls,
            measured.http2_over_tls,
        ),
    ];
    for (name, speed, baseline) in speeds {
        let mebibytes = speed / f64::from(1 << 20);
        println!(
            "{name:27} {mebibytes:7.0} MiB/s {:4.0} %",
            speed / baseline * 100.0
        );
    }
    println!("round trip over TCP         {:?}", measured.tcp_round_trip);
    println!(
        "round trip over link        {:?}",
        measured.link_over_tcp_round_trip
    );
    Ok(())
}
