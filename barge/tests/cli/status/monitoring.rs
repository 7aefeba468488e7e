//! The dashboard and the alert rules in `packaging/monitoring` name only metrics that a server has,
//! with labels that these have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use saphyr::{LoadableYamlNode, Yaml};
use serde_json::Value;

use super::{get, http};
use crate::served::{ServerProcess, stdout_of};

/// Labels that Prometheus adds, and that of histograms.
const EXTERNAL: [&str; 3] = ["job", "instance", "le"];

fn file(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/monitoring");
    fs::read_to_string(dir.join(name)).expect(name)
}

/// Returns the strings at the keys `expr`, and the queries of variables, in the dashboard.
fn dashboard_expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                match (key.as_str(), value) {
                    ("expr" | "definition", Value::String(text)) => found.push(text.clone()),
                    _ => dashboard_expressions(value, found),
                }
            }
        }
        Value::Array(items) => {
            let items = items.iter();
            items.for_each(|item| dashboard_expressions(item, found));
        }
        _ => {}
    }
}

/// Returns the list at `key`.
fn list<'a>(yaml: &Yaml<'a>, key: &str) -> Vec<Yaml<'a>> {
    let list = yaml.as_mapping_get(key).and_then(Yaml::as_sequence);
    list.expect(key).clone()
}

/// Returns the expressions of all alerts, by name.
fn alert_expressions() -> BTreeMap<String, String> {
    let text = file("alerts.yaml");
    let documents = Yaml::load_from_str(&text).expect("YAML");
    let groups = list(&documents[0], "groups");
    let rules = groups.iter().flat_map(|group| list(group, "rules"));
    let named = rules.map(|rule| {
        let text = |key: &str| {
            let value = rule.as_mapping_get(key).and_then(Yaml::as_str);
            value.expect(key).to_owned()
        };
        assert!(rule.as_mapping_get("annotations").is_some());
        (text("alert"), text("expr"))
    });
    named.collect()
}

/// Returns the words of an expression, without strings in quotes.
fn words(expression: &str) -> Vec<&str> {
    let outside = expression.split('"').step_by(2);
    let words =
        outside.flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    words.filter(|word| !word.is_empty()).collect()
}

/// Returns the metrics of a server, by name, with the labels of their samples. Families without
/// samples have none.
fn exported(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut metrics: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.split_once(' ').expect("a type");
            let suffixes: &[&str] = match kind {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                "info" => &["_info"],
                _ => &[""],
            };
            for suffix in suffixes {
                metrics.entry(format!("{name}{suffix}")).or_default();
            }
            assert!(text.contains(&format!("# HELP {name} ")), "{name}");
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().expect("a name");
            let labels = metrics
                .get_mut(name)
                .unwrap_or_else(|| panic!("{name} has no type"));
            let pairs = line.split_once('{').map_or("", |(_, rest)| rest);
            let keys = pairs
                .split('"')
                .step_by(2)
                .filter_map(|part| part.strip_suffix('='));
            labels.extend(keys.map(|key| key.trim_start_matches(',').to_owned()));
        }
    }
    metrics
}

#[test]
fn the_dashboard_and_the_alerts_use_metrics_that_a_server_exports() {
    let dir = tempfile::tempdir().expect("a directory");
    let share = dir.path().join("share");
    fs::create_dir(&share).expect("made");
    let image = dir.path().join("image");
    let [share, image] = [&share, &image].map(|path| path.to_str().expect("text"));
    let origin = ServerProcess::start(&["mem:"]);
    stdout_of(&origin.barge(&["pack", share, image, "-q"], ""));
    let far = format!("far=9p://127.0.0.1:{}/", origin.port());
    let image = format!("image={image}");
    let served = ServerProcess::start(&[&image, &far, "--http", "0", "--slow-ms", "100000"]);
    stdout_of(&served.barge(&["ls", "{}"], "far"));
    served.barge(&["ls", "{}"], "missing");
    let mut metrics = exported(&get(&http(&served), "/metrics"));
    // Servers without the feature otel have none.
    metrics.remove("barge_otlp_spans_total");
    let mut expressions = Vec::new();
    let dashboard: Value = serde_json::from_str(&file("dashboard.json")).expect("JSON");
    dashboard_expressions(&dashboard, &mut expressions);
    assert!(expressions.len() > 30, "{}", expressions.len());
    let alerts = alert_expressions();
    for alert in [
        "BargeDown",
        "BargeNotReady",
        "BargeMemoryNearlyFull",
        "BargeRemoteSlow",
    ] {
        assert!(alerts.contains_key(alert), "{alert}");
    }
    expressions.extend(alerts.into_values());
    let mut used = BTreeSet::new();
    for expression in &expressions {
        let names = words(expression)
            .into_iter()
            .filter(|word| word.starts_with("barge_"));
        let names: Vec<_> = names.collect();
        for name in &names {
            assert!(metrics.contains_key(*name), "{name} in {expression}");
            used.insert(*name);
        }
        // Labels that are grouped by are those of metrics with samples here.
        let groups = expression.split(" by (").skip(1);
        let labels = groups.filter_map(|group| group.split(')').next());
        for label in labels.flat_map(words) {
            let known = names
                .iter()
                .any(|name| metrics[*name].is_empty() || metrics[*name].contains(label));
            assert!(
                known || EXTERNAL.contains(&label),
                "{label} in {expression}"
            );
        }
    }
    let unused: Vec<_> = metrics
        .keys()
        .filter(|name| !used.contains(&***name))
        .collect();
    // The sums of times say less than their quantiles.
    let sums = unused.iter().all(|name| name.ends_with("_sum"));
    assert!(sums, "not in the dashboard: {unused:?}");
}
