//! Prints what a link costs on this machine: `cargo run --release --example measure --features measure -- 512`.
#![expect(
    clippy::print_stdout,
    reason = "it is a program, and this is its output"
)]

fn main() -> Result<(), link::LinkError> {
    let mebibytes = std::env::args().nth(1).and_then(|count| count.parse().ok());
    let seen = link::measure::measure(mebibytes.unwrap_or(512_u64) << 20, 5, 5000)?;
    let speeds = [
        ("TCP", seen.tcp, seen.tcp),
        ("link over TCP", seen.link_over_tcp, seen.tcp),
        ("TLS", seen.tls, seen.tls),
        ("link over TLS", seen.link_over_tls, seen.tls),
        ("HTTP/2 over TCP", seen.http2_over_tcp, seen.http2_over_tcp),
        (
            "HTTP/2 over link over TCP",
            seen.http2_over_link_over_tcp,
            seen.http2_over_tcp,
        ),
        ("HTTP/2 over TLS", seen.http2_over_tls, seen.http2_over_tls),
        (
            "HTTP/2 over link over TLS",
            seen.http2_over_link_over_tls,
            seen.http2_over_tls,
        ),
    ];
    for (name, speed, baseline) in speeds {
        let mebibytes = speed / f64::from(1 << 20);
        println!(
            "{name:27} {mebibytes:7.0} MiB/s {:4.0} %",
            speed / baseline * 100.0
        );
    }
    println!("round trip over TCP         {:?}", seen.tcp_round_trip);
    println!(
        "round trip over link        {:?}",
        seen.link_over_tcp_round_trip
    );
    Ok(())
}
