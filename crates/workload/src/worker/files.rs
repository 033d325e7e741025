//! File operations, as programs use them.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::{Numbers, time_each};

const SMALL: usize = 4096;
const BLOCK: usize = 256 * 1024;

fn small(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("small-{number}"))
}

pub(super) fn open_read_close(folder: &Path, from: usize, count: usize) -> Result<Numbers> {
    let mut buffer = [0; SMALL];
    let seconds = time_each(count, |number| {
        let path = small(folder, from + number);
        let mut file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        file.read_exact(&mut buffer)?;
        drop(file);
        Ok(())
    })?;
    Ok(Numbers::from([("seconds", seconds)]))
}

pub(super) fn metadata(folder: &Path, from: usize, count: usize) -> Result<Numbers> {
    let check_length = |number: usize| {
        let length = fs::metadata(small(folder, number))?.len();
        ensure!(length == SMALL as u64, "the file has {length} bytes");
        Ok(())
    };
    let first = time_each(count, |number| check_length(from + number))?;
    // These follow the first within a second, unless each takes a round trip.
    let again = time_each(count, |_| check_length(from + count - 1))?;
    Ok(Numbers::from([("first", first), ("again", again)]))
}

pub(super) fn further_reads(path: &Path, count: usize) -> Result<Numbers> {
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut buffer = [0; SMALL];
    file.read_exact(&mut buffer)?;
    let seconds = time_each(count, |_| Ok(file.read_exact(&mut buffer)?))?;
    Ok(Numbers::from([("seconds", seconds)]))
}

pub(super) fn whole_file(path: &Path) -> Result<Numbers> {
    let mut buffer = vec![0; BLOCK];
    let start = Instant::now();
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut total = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => total += count,
        }
    }
    drop(file);
    let seconds = start.elapsed().as_secs_f64();
    Ok(Numbers::from([
        ("seconds", vec![seconds]),
        ("bytes", vec![total as f64]),
    ]))
}
