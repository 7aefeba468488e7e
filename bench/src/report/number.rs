//! Numbers in reports.

/// Formats a figure with three significant digits, or all digits of the integer part.
pub(super) fn figure(value: f64) -> String {
    let whole = value.abs();
    match () {
        () if whole >= 100.0 => thousands(value.round()),
        () if whole >= 10.0 => format!("{value:.1}"),
        () if whole == 0.0 => "0".into(),
        () => format!("{value:.2}"),
    }
}

/// Formats a ratio, with decimals as its size warrants.
pub(super) fn ratio(value: f64) -> String {
    match () {
        () if value >= 100.0 => thousands(value.round()),
        () if value >= 10.0 => format!("{value:.1}"),
        () if value >= 0.095 => format!("{value:.2}"),
        () => format!("{value:.3}"),
    }
}

fn thousands(whole: f64) -> String {
    let digits = format!("{:.0}", whole.abs());
    let mut text = String::from(if whole < 0.0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a duration in seconds or minutes.
pub(super) fn minutes(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 90.0 => format!("{seconds:.0} s"),
        seconds => format!("{:.0} min", seconds / 60.0),
    }
}
