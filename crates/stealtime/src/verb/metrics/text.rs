//! The metrics in OpenMetrics and in Prometheus's own text form.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::families;
use super::form::{Distribution, Form, Number, PREFIX, Values, seconds};
use super::totals::Totals;

/// OpenMetrics.
pub(super) fn openmetrics(totals: &Totals) -> String {
    let mut written = String::new();
    // A String takes any text.
    let _ = text::encode(&mut written, &registry(totals));
    written
}

/// Prometheus's text form 0.0.4, which node_exporter reads.
pub(super) fn prometheus(totals: &Totals) -> String {
    let mut written = String::new();
    let _ = prometheus_text::encode(&mut written, &registry(totals));
    written
}

fn registry(totals: &Totals) -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Exported(totals.clone())));
    registry
}

#[derive(Debug)]
struct Exported(Totals);

impl Collector for Exported {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        families::encode(&mut Text(encoder), &self.0)
    }
}

/// Both text forms.
struct Text<'a>(DescriptorEncoder<'a>);

impl Form for Text<'_> {
    fn counters(&mut self, name: &str, help: &str, values: Values<u64>) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            let mut series = metric.encode_family(&labels)?;
            series.encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
        }
        Ok(())
    }

    fn times(&mut self, name: &str, help: &str, values: Values<u64>) -> fmt::Result {
        let unit = Unit::Seconds;
        let encoder = &mut self.0;
        let mut metric = encoder.encode_descriptor(name, help, Some(&unit), MetricType::Counter)?;
        for (labels, ns) in values {
            let mut series = metric.encode_family(&labels)?;
            series.encode_counter::<NoLabelSet, f64, f64>(&seconds(ns), None)?;
        }
        Ok(())
    }

    fn gauges<N: Number>(&mut self, name: &str, help: &str, values: Values<N>) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn histograms(&mut self, name: &str, help: &str, values: Values<Distribution>) -> fmt::Result {
        let unit = Unit::Seconds;
        let encoder = &mut self.0;
        let mut metric =
            encoder.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
        for (labels, waits) in values {
            let mut series = metric.encode_family(&labels)?;
            let count = waits.count();
            series.encode_histogram::<NoLabelSet>(waits.sum, count, &waits.classes, None)?;
        }
        Ok(())
    }
}
