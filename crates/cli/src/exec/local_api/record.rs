//! Records the events of a session to a file.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use monitor::{Counters, PROTOCOL_VERSION, RecordingLine};
use proxy::EventBatch;
use tokio::time::interval;

use super::SessionContext;

const COUNTERS_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until the session has ended. Values of variables are not written, because recordings are shared with others.
pub(super) async fn record(context: Arc<SessionContext>, file: File) {
    let Some(mut events) = context.monitor.subscribe(None) else {
        return;
    };
    let mut recorder = Recorder {
        file: BufWriter::new(file),
        counters: Counters::default(),
    };
    recorder.write(&RecordingLine::Begin {
        protocol_version: PROTOCOL_VERSION,
        info: Box::new(context.info()),
        config: context.config.clone(),
    });
    let mut ended = context.ended.subscribe();
    let mut count = interval(COUNTERS_INTERVAL);
    loop {
        tokio::select! {
            batch = events.next() => recorder.batch(batch),
            _ = count.tick() => recorder.count(context.monitor.counters()),
            _ = ended.wait_for(|ended| *ended) => break,
        }
        // Buffered data would be lost if this process were killed.
        let _ = recorder.file.flush();
    }
    while let Some(batch) = events.take() {
        recorder.batch(batch);
    }
    let mut state = context.monitor.state();
    for (_, value) in &mut state.env {
        value.clear();
    }
    recorder.write(&RecordingLine::End {
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
    fn batch(&mut self, batch: EventBatch) {
        if batch.missed > 0 {
            let count = batch.missed;
            self.write(&RecordingLine::Missed { count });
        }
        for entry in batch.entries {
            let mut entry = (*entry).clone();
            entry.event.hide_values();
            self.write(&RecordingLine::Event(entry));
        }
    }

    fn count(&mut self, counters: Counters) {
        if counters != self.counters {
            self.counters = counters.clone();
            self.write(&RecordingLine::Counters {
                time: now(),
                counters: Box::new(counters),
            });
        }
    }

    /// Only logs errors: a full disk must not end the session.
    fn write(&mut self, line: &RecordingLine) {
        let written = serde_json::to_writer(&mut self.file, line)
            .map_err(std::io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"));
        if let Err(error) = written {
            tracing::warn!(%error, "recording not written");
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
