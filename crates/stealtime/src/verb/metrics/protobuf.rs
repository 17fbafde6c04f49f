//! The metrics in Prometheus's protobuf form, which alone has native histograms: messages
//! `io.prometheus.client.MetricFamily` (client_model, `metrics.proto`), each behind its length.

use std::fmt;

use stealtime_collector::Buckets;

use super::families;
use super::form::{Distribution, Form, Number, PREFIX, Values, seconds};
use super::totals::Totals;

/// What a metric is: its number in `MetricType`, and the field of `Metric` that has its value.
#[derive(Debug, Clone, Copy)]
struct Kind {
    number: u64,
    field: u32,
}

const COUNTER: Kind = Kind {
    number: 0,
    field: 3,
};
const GAUGE: Kind = Kind {
    number: 1,
    field: 2,
};
const HISTOGRAM: Kind = Kind {
    number: 4,
    field: 7,
};
/// The field of `Metric` that has its labels.
const LABEL_FIELD: u32 = 1;
/// Buckets of schema 3 end at powers of 2^(1/8), as those of [`Buckets`] do.
const SCHEMA: i64 = 3;
/// Width of the bucket of zeros: Prometheus's own default, 2^-128.
const ZERO_THRESHOLD: f64 = 2.938_735_877_055_719e-39;

/// All metrics.
pub(super) fn encode(totals: &Totals) -> Vec<u8> {
    let mut written = Protobuf::default();
    // A Vec takes any bytes.
    let _ = families::encode(&mut written, totals);
    written.0.0
}

/// A message of protobuf (protobuf.dev, "Encoding").
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    /// A field that is a number.
    fn number(&mut self, field: u32, value: u64) {
        self.varint((field << 3).into());
        self.varint(value);
    }

    /// A field of type `sint32` or `sint64`.
    fn signed(&mut self, field: u32, value: i64) {
        self.number(field, ((value << 1) ^ (value >> 63)).cast_unsigned());
    }

    fn double(&mut self, field: u32, value: f64) {
        self.varint((field << 3 | 1).into());
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, value: &[u8]) {
        self.varint((field << 3 | 2).into());
        self.varint(value.len() as u64);
        self.0.extend(value);
    }

    fn message(&mut self, field: u32, value: &Self) {
        self.bytes(field, &value.0);
    }
}

/// Families, each behind its length.
#[derive(Debug, Default)]
struct Protobuf(Message);

impl Protobuf {
    /// A family; without series it is left out.
    fn family(&mut self, name: &str, help: &str, kind: Kind, values: Values<Message>) {
        let mut family = Message::default();
        family.bytes(1, format!("{PREFIX}_{name}").as_bytes());
        family.bytes(2, format!("{help}.").as_bytes());
        family.number(3, kind.number);
        let head = family.0.len();
        for (labels, value) in values {
            let mut series = Message::default();
            for (name, value) in labels {
                let mut label = Message::default();
                label.bytes(1, name.as_bytes());
                label.bytes(2, value.as_bytes());
                series.message(LABEL_FIELD, &label);
            }
            series.message(kind.field, &value);
            family.message(4, &series);
        }
        if family.0.len() > head {
            self.0.varint(family.0.len() as u64);
            self.0.0.extend(family.0);
        }
    }
}

/// A counter or a gauge.
fn value(number: f64) -> Message {
    let mut message = Message::default();
    message.double(1, number);
    message
}

impl Form for Protobuf {
    fn counters(&mut self, name: &str, help: &str, values: Values<u64>) -> fmt::Result {
        let values = values.into_iter();
        let values = values.map(|(labels, count)| (labels, value(count.float())));
        self.family(&format!("{name}_total"), help, COUNTER, values.collect());
        Ok(())
    }

    fn times(&mut self, name: &str, help: &str, values: Values<u64>) -> fmt::Result {
        let values = values.into_iter();
        let values = values.map(|(labels, ns)| (labels, value(seconds(ns))));
        let name = format!("{name}_seconds_total");
        self.family(&name, help, COUNTER, values.collect());
        Ok(())
    }

    fn gauges<N: Number>(&mut self, name: &str, help: &str, values: Values<N>) -> fmt::Result {
        let values = values.into_iter();
        let values = values.map(|(labels, number)| (labels, value(number.float())));
        self.family(name, help, GAUGE, values.collect());
        Ok(())
    }

    fn histograms(&mut self, name: &str, help: &str, values: Values<Distribution>) -> fmt::Result {
        let values = values.into_iter();
        let values = values.map(|(labels, waits)| (labels, histogram(&waits)));
        let name = format!("{name}_seconds");
        self.family(&name, help, HISTOGRAM, values.collect());
        Ok(())
    }
}

/// Classes for scrapers that keep these, and native buckets.
fn histogram(waits: &Distribution) -> Message {
    let mut message = Message::default();
    message.number(1, waits.count());
    message.double(2, waits.sum);
    let mut cumulated = 0;
    for &(end, count) in &waits.classes {
        cumulated += count;
        let mut class = Message::default();
        class.number(1, cumulated);
        class.double(2, end);
        message.message(3, &class);
    }
    if let Some(buckets) = &waits.buckets {
        debug_assert_eq!(buckets.count(), waits.count(), "Prometheus refuses it");
        native(&mut message, buckets);
    }
    message
}

/// Spans are buckets one behind the other: how many are left out before, and how many these are. Numbers of
/// values are differences to the bucket before.
fn native(message: &mut Message, buckets: &Buckets) {
    message.signed(5, SCHEMA);
    message.double(6, ZERO_THRESHOLD);
    message.number(7, 0);
    let mut spans = Vec::<(i32, u64)>::new();
    let mut next = 0;
    for &(bucket, _) in buckets.counts() {
        match spans.last_mut().filter(|_| bucket == next) {
            Some(span) => span.1 += 1,
            None => spans.push((bucket - next, 1)),
        }
        next = bucket + 1;
    }
    for (offset, length) in spans {
        let mut span = Message::default();
        span.signed(1, offset.into());
        span.number(2, length);
        message.message(12, &span);
    }
    let mut former = 0;
    for &(_, count) in buckets.counts() {
        let count = count.cast_signed();
        message.signed(13, count - former);
        former = count;
    }
}

#[cfg(test)]
mod tests;
