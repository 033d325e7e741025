//! Writes a session into a file, as it happens.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use monitor::{Counters, Line, PROTOCOL_VERSION};
use proxy::Batch;
use tokio::time::interval;

use super::Watched;

const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Goes on until the session is over. Values of variables are not written: recordings are given to others.
pub(super) async fn record(watched: Arc<Watched>, file: File) {
    let Some(mut events) = watched.monitor.subscribe(None) else {
        return;
    };
    let mut recorder = Recorder {
        file: BufWriter::new(file),
        counters: Counters::default(),
    };
    recorder.write(&Line::Begin {
        protocol_version: PROTOCOL_VERSION,
        info: Box::new(watched.info()),
        config: watched.config.clone(),
    });
    let mut over = watched.over.subscribe();
    let mut count = interval(COUNT_EVERY);
    loop {
        tokio::select! {
            batch = events.next() => recorder.batch(batch),
            _ = count.tick() => recorder.count(watched.monitor.counters()),
            _ = over.wait_for(|over| *over) => break,
        }
        // What is in memory is lost with us.
        let _ = recorder.file.flush();
    }
    while let Some(batch) = events.take() {
        recorder.batch(batch);
    }
    let mut state = watched.monitor.state();
    for (_, value) in &mut state.env {
        value.clear();
    }
    recorder.write(&Line::End {
        time: now(),
        state: Box::new(state),
    });
    let _ = recorder.file.flush();
}

struct Recorder {
    file: BufWriter<File>,
    counters: Counters,
}

impl Recorder {
    fn batch(&mut self, batch: Batch) {
        if batch.missed > 0 {
            let count = batch.missed;
            self.write(&Line::Missed { count });
        }
        for entry in batch.entries {
            let mut entry = (*entry).clone();
            entry.event.hide_values();
            self.write(&Line::Event(entry));
        }
    }

    fn count(&mut self, counters: Counters) {
        if counters != self.counters {
            self.counters = counters.clone();
            self.write(&Line::Counters {
                time: now(),
                counters: Box::new(counters),
            });
        }
    }

    /// A disk that is full is no reason to end the session, and is logged.
    fn write(&mut self, line: &Line) {
        let written = serde_json::to_writer(&mut self.file, line)
            .map_err(std::io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"));
        if let Err(error) = written {
            tracing::warn!(%error, "the recording cannot be written");
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
