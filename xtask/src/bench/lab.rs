//! The cost of clusters: the time to start, the usage while idle, the time to load an image, and the time to stop.
//!
//! The baseline of everything is one cluster, so the ratio shows what each further one adds.

use std::fs;
use std::process;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use lab::cleanup::HostResources;
use lab::image::Image;
use lab::{Lab, LabRequest, Lifetime, Paths, Progress, Shape};

use super::Row;

/// How long a cluster settles before its idle usage is measured.
const SETTLE_TIME: Duration = Duration::from_secs(20);
const MEASURE_TIME: Duration = Duration::from_secs(30);
const IMAGE_BYTES: usize = 10_000_000;

pub(super) fn measure() -> Result<Vec<Row>> {
    let paths = Paths::from_environment();
    // One-time preparations are not measured.
    let name = &format!("bench-{}", process::id());
    drop(bring_up(&paths, name, 1)?);
    Lab::down(&paths, name)?;

    let before = HostResources::snapshot();
    let one = measure_clusters(&paths, name, 1)?;
    let start_of_two = Instant::now();
    // Kept until the end: dropping it stops the lab.
    let _two_clusters = bring_up(&paths, name, 2)?;
    let two = start_of_two.elapsed();
    let three = measure_clusters(&paths, name, 3)?;
    let left = HostResources::wait_for_cleanup(&before, &[], Duration::from_secs(5));
    for (kind, name) in &left {
        eprintln!("left behind: {kind} {name}");
    }
    Ok(vec![
        Row::new(
            "two clusters, nothing running -> pods run and names resolve",
            two.as_secs_f64(),
            "s",
        )
        .baseline(one.start.as_secs_f64())
        .at_most(30.0),
        Row::new("three clusters idle, memory", three.memory, "MiB")
            .baseline(one.memory)
            .at_most(1.7 * 1024.0),
        Row::new(
            "three clusters idle, processor",
            three.processor,
            "% of a core",
        )
        .baseline(one.processor)
        .at_most(25.0),
        Row::new(
            "an image of 10 MB into three clusters",
            three.image.as_secs_f64(),
            "s",
        )
        .baseline(one.image.as_secs_f64())
        .at_most(3.0),
        Row::new("lab down, three clusters", three.end.as_secs_f64(), "s")
            .baseline(one.end.as_secs_f64())
            .at_most(5.0),
        Row::new("left behind, counted", left.len() as f64, "").at_most(0.0),
    ])
}

struct ClusterCosts {
    start: Duration,
    memory: f64,
    processor: f64,
    image: Duration,
    end: Duration,
}

/// Starts clusters up to this count, measures them while idle, loads an image and stops all of them.
fn measure_clusters(paths: &Paths, name: &str, clusters: usize) -> Result<ClusterCosts> {
    let started = Instant::now();
    let lab = bring_up(paths, name, clusters)?;
    let start = started.elapsed();
    eprintln!(
        "{clusters} cluster(s): idle for {} s",
        (SETTLE_TIME + MEASURE_TIME).as_secs()
    );
    thread::sleep(SETTLE_TIME);
    let (before, watching) = (lab.usage()?, Instant::now());
    thread::sleep(MEASURE_TIME);
    let (after, watched) = (lab.usage()?, watching.elapsed());
    let used = after.processor_time.saturating_sub(before.processor_time);
    let image = load_image(paths, &lab)?;
    let ending = Instant::now();
    Lab::down(paths, name)?;
    Ok(ClusterCosts {
        start,
        memory: after.memory as f64 / f64::from(1 << 20),
        processor: 100.0 * used.as_secs_f64() / watched.as_secs_f64(),
        image,
        end: ending.elapsed(),
    })
}

fn bring_up(paths: &Paths, name: &str, clusters: usize) -> Result<Lab> {
    let request = LabRequest::new(name, clusters, 1, Shape::Full)?;
    Ok(Lab::up(
        paths,
        &request,
        Lifetime::Owned,
        &Progress::to_stderr(),
    )?)
}

/// The time from an archive on disk to an image in every node. Its content is new each time, so that no node has any
/// part of it.
fn load_image(paths: &Paths, lab: &Lab) -> Result<Duration> {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let mut state = now.as_nanos() as u64;
    let content: Vec<u8> = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    })
    .take(IMAGE_BYTES)
    .collect();
    let archive = Image::new("registry.lab/bench:1")
        .bytes("/content", content, 0o644)
        .write(&paths.base().join("bench-image.tar"))?;
    let started = Instant::now();
    lab.load_image(archive.path())?;
    let elapsed = started.elapsed();
    fs::remove_file(archive.path()).context("removing the image of the bench")?;
    Ok(elapsed)
}
