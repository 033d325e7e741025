//! The bytes that HTTP/2 streams have received and that were not forwarded yet.
//!
//! The HTTP/2 library buffers what a peer sends until the window of its stream is full. It reports the amount of each stream,
//! but not when it changes, so it is measured whenever enough bytes have been received or forwarded.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use h2::{FlowControl, RecvStream};
use parking_lot::Mutex;

use super::{Charge, Holder};

/// After how many bytes it is measured again.
const MEASURE_INTERVAL: usize = 16 * 1024;
/// Measuring a stream takes about as much time as copying this many bytes.
const MEASURE_COST: usize = 128;

/// Measures streams that make progress together, and charges what they hold.
#[derive(Default)]
pub struct InFlight {
    /// Bytes that were received or forwarded since the last measurement.
    progress: AtomicUsize,
    /// The last measurement.
    total: AtomicUsize,
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    last_id: u64,
    by_id: HashMap<u64, (FlowControl, Charge)>,
}

/// A stream that is measured until this is dropped.
pub struct MeasuredStream {
    in_flight: Arc<InFlight>,
    id: u64,
    flow: FlowControl,
}

impl InFlight {
    /// Measures a stream, and charges its holder.
    #[must_use]
    pub fn add(self: &Arc<Self>, stream: &mut RecvStream, holder: &Holder) -> MeasuredStream {
        let flow = stream.flow_control().clone();
        let mut streams = self.streams.lock();
        streams.last_id += 1;
        let id = streams.last_id;
        streams.by_id.insert(id, (flow.clone(), holder.charge(0)));
        MeasuredStream {
            in_flight: Arc::clone(self),
            id,
            flow,
        }
    }

    /// Records that bytes were received or forwarded.
    pub fn progressed(&self, bytes: usize) {
        let progress = self.progress.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if progress >= MEASURE_INTERVAL {
            self.measure(progress);
        }
    }

    fn measure(&self, progress: usize) {
        let mut streams = self.streams.lock();
        if progress < MEASURE_INTERVAL + MEASURE_COST * streams.by_id.len() {
            return;
        }
        self.progress.store(0, Ordering::Relaxed);
        let mut total = 0;
        for (flow, charge) in streams.by_id.values_mut() {
            charge.resize(flow.used_capacity());
            total += charge.bytes();
        }
        self.total.store(total, Ordering::Relaxed);
    }

    /// How much the streams held at the last measurement.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }
}

impl MeasuredStream {
    /// Returns capacity to the sender: the bytes have been forwarded.
    pub fn release(&mut self, bytes: usize) {
        // It fails if the stream has been reset.
        let _ = self.flow.release_capacity(bytes);
        self.in_flight.progressed(bytes);
    }

    /// Charges another holder from now on.
    pub fn charge_to(&mut self, holder: &Holder) {
        if let Some((_, charge)) = self.in_flight.streams.lock().by_id.get_mut(&self.id) {
            *charge = holder.charge(charge.bytes());
        }
    }
}

impl Drop for MeasuredStream {
    fn drop(&mut self) {
        let ended = {
            let mut streams = self.in_flight.streams.lock();
            let ended = streams.by_id.remove(&self.id);
            let held = ended.as_ref().map_or(0, |(_, charge)| charge.bytes());
            self.in_flight.total.fetch_sub(held, Ordering::Relaxed);
            ended
        };
        // Not while the table is locked: this may be the last reference to the stream.
        drop(ended);
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streams = self.streams.lock().by_id.len();
        write!(formatter, "InFlight({streams} streams)")
    }
}

impl fmt::Debug for MeasuredStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("MeasuredStream")
    }
}
