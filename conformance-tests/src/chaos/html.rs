//! A report as one page without anything from elsewhere: verdict, timeline, takeovers, requests.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use super::judge::Trial;
use super::record::{Fact, Nanos};
use super::report::{Report, Takeovers};

const WIDTH: f64 = 1160.0;
const LEFT: f64 = 100.0;
const ROW: f64 = 40.0;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1d2433; --dim: #667085; --line: #d5dae3; --paper: #fff;
  --standby: #cfd8e6; --lead: #1f77b4; --fault: #d1495b; --stall: #e9a23b; --good: #2e7d4f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9f0; --dim: #98a2b3; --line: #39415a; --paper: #141824;
  --standby: #34405a; --lead: #4da3dd; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 24px auto;
  max-width: 1180px; padding: 0 12px; }
h1 { font-size: 20px; margin: 0 0 4px; } h2 { font-size: 15px; margin: 28px 0 8px; }
.dim, .dim text { color: var(--dim); fill: var(--dim); }
.scroll { overflow-x: auto; } svg { display: block; } svg text { font-size: 12px; fill: var(--ink); }
table { border-collapse: collapse; } td, th { text-align: left; padding: 3px 18px 3px 0; vertical-align: top; }
td.n { font-variant-numeric: tabular-nums; text-align: right; }
.holds { color: var(--good); } .broken { color: var(--fault); font-weight: 600; }
pre { overflow-x: auto; margin: 4px 0; }
.key { display: inline-block; width: 12px; height: 12px; margin: 0 5px -1px 14px; }
.standby { fill: var(--standby); background: var(--standby); } .lead { fill: var(--lead); background: var(--lead); }
.fault { fill: var(--fault); background: var(--fault); } .stall { fill: var(--stall); background: var(--stall); }
.grid { stroke: var(--line); } .goal { stroke: var(--fault); stroke-dasharray: 4 3; }
";

/// Text that cannot be taken for markup.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

pub(super) fn page(report: &Report, trial: &Trial<'_>) -> Result<String, fmt::Error> {
    let mut page = String::new();
    let title = format!("{} · {}", report.scenario, report.store);
    write!(
        page,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{0}</title><style>{STYLE}</style>\n<h1>{0}</h1>\n<div class=\"dim\">seed \
         {1} · {2:.0} s · {3} candidates · ttl {4} ms",
        Text(&title),
        report.seed,
        report.seconds,
        report.candidates,
        report.ttl_ms
    )?;
    if let Some(mutant) = &report.mutant {
        write!(page, " · planted fault: <b>{}</b>", Text(mutant))?;
    }
    page.push_str("</div>\n");
    verdict(&mut page, report)?;
    timeline(&mut page, report, trial)?;
    figures(&mut page, report)?;
    for (what, takeovers) in [
        ("Takeovers after a release", &report.clean),
        (
            "Takeovers after a crash, a stop or a partition",
            &report.crash,
        ),
    ] {
        distribution(&mut page, what, takeovers)?;
    }
    requests(&mut page, report, trial)?;
    page.push_str("</html>\n");
    Ok(page)
}

fn verdict(page: &mut String, report: &Report) -> fmt::Result {
    page.push_str("<h2>Verdict</h2>\n<table>\n");
    for (name, broken) in &report.verdict {
        match broken {
            None => writeln!(page, "<tr><td class=\"holds\">holds<td>{}", Text(name))?,
            Some(broken) => writeln!(
                page,
                "<tr><td class=\"broken\">BROKEN<td>{}: {}<pre>{}</pre>",
                Text(name),
                Text(&broken.why),
                Text(&broken.piece.join("\n"))
            )?,
        }
    }
    page.push_str("</table>\n");
    Ok(())
}

/// Where an instant of the run lies.
struct Scale {
    from: Nanos,
    to: Nanos,
}

impl Scale {
    #[allow(clippy::cast_precision_loss, reason = "a place in a picture")]
    fn x(&self, at: Nanos) -> f64 {
        let at = at.clamp(self.from, self.to) - self.from;
        LEFT + at as f64 / (self.to - self.from).max(1) as f64 * (WIDTH - LEFT)
    }

    #[allow(clippy::cast_precision_loss, reason = "a text for people")]
    fn seconds(&self, at: Nanos) -> f64 {
        at.saturating_sub(self.from) as f64 / 1e9
    }

    /// A bar with what it says when pointed at.
    fn bar(
        &self,
        page: &mut String,
        class: &str,
        (from, to): (Nanos, Nanos),
        (y, height): (f64, f64),
        says: &str,
    ) -> fmt::Result {
        if to <= self.from || from >= self.to {
            return Ok(());
        }
        let (x, end) = (self.x(from), self.x(to));
        writeln!(
            page,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{height}\"><title>{} \
             ({:.3} s to {:.3} s)</title></rect>",
            (end - x).max(1.0),
            Text(says),
            self.seconds(from),
            self.seconds(to.min(self.to))
        )
    }

    /// Lines and numbers of whole seconds.
    fn axis(&self, page: &mut String, height: f64) -> fmt::Result {
        let seconds = (self.to - self.from) / 1_000_000_000;
        let step = [1, 2, 5, 10, 30, 60, 300, 600];
        let step = step
            .into_iter()
            .find(|step| seconds / step <= 15)
            .unwrap_or(1800);
        let mut second = 0;
        while second <= seconds {
            let x = self.x(self.from + second * 1_000_000_000);
            writeln!(
                page,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{height}\"/><text x=\"{x:.1}\" \
                 y=\"{}\" text-anchor=\"middle\">{second} s</text>",
                height + 14.0
            )?;
            second += step;
        }
        Ok(())
    }
}

fn timeline(page: &mut String, report: &Report, trial: &Trial<'_>) -> fmt::Result {
    let evidence = trial.evidence;
    let scale = Scale {
        from: evidence.from,
        to: evidence.to,
    };
    let height = ROW * (f64::from(report.candidates) + 1.0) + 6.0;
    page.push_str(
        "<h2>Timeline</h2>\n<div class=\"dim\"><span class=\"key standby\"></span>runs, does not lead<span \
         class=\"key lead\"></span>leads<span class=\"key stall\"></span>process stands still<span class=\"key \
         fault\"></span>a fault strikes it; no bar: down</div>\n<div class=\"scroll\">",
    );
    writeln!(
        page,
        "<svg width=\"{}\" height=\"{}\">",
        WIDTH + 12.0,
        height + 22.0
    )?;
    scale.axis(page, height)?;
    for row in 0..=report.candidates {
        let y = ROW * f64::from(row) + 6.0;
        let on = (row > 0).then_some(row);
        let name = on.map_or_else(|| "store".to_owned(), |who| format!("candidate {who}"));
        writeln!(page, "<text x=\"0\" y=\"{}\">{name}</text>", y + 15.0)?;
        if let Some(who) = on {
            for (from, to) in trial.lives(who) {
                scale.bar(page, "standby", (from, to), (y, 20.0), "runs")?;
            }
            for term in trial.terms.iter().filter(|term| term.who == who) {
                let began = term.began.as_ref().map(|record| record.at);
                let last = term.last_allowed().map(|record| record.at);
                if let (Some(from), Some(to)) = (began, last) {
                    let says = format!("leads with the token {}", term.token);
                    scale.bar(page, "lead", (from, to), (y, 20.0), &says)?;
                }
            }
            for record in evidence.records.iter().filter(|record| record.who == who) {
                if let Fact::Stalled { from } = record.fact {
                    scale.bar(
                        page,
                        "stall",
                        (from, record.at),
                        (y + 7.0, 6.0),
                        "stands still",
                    )?;
                }
            }
        }
        for window in evidence.windows.iter().filter(|window| window.on == on) {
            let place = if on.is_none() {
                (y, 20.0)
            } else {
                (y + 22.0, 6.0)
            };
            scale.bar(
                page,
                "fault",
                (window.from, window.to),
                place,
                window.kind.name(),
            )?;
        }
    }
    page.push_str("</svg></div>\n");
    Ok(())
}

fn figures(page: &mut String, report: &Report) -> fmt::Result {
    let list = |counts: &BTreeMap<String, u64>| {
        let parts = counts.iter().map(|(what, n)| format!("{what} {n}"));
        parts.collect::<Vec<_>>().join(", ")
    };
    let excuses = &report.excuses;
    let rows = [
        ("Faults", list(&report.faults)),
        ("Terms", report.terms.to_string()),
        (
            "Takeovers in the midst of faults",
            report.disturbed_takeovers.to_string(),
        ),
        (
            "Longest time without a leader",
            format!("{} ms", report.longest_gap_ms),
        ),
        (
            "A healthy candidate leads within",
            format!("{} ms (I6)", report.liveness_bound_ms),
        ),
        (
            "Writes to the resource",
            format!(
                "{} taken, {} refused as stale",
                report.writes_taken, report.writes_refused
            ),
        ),
        (
            "Forgiven: work frozen over a hand-over",
            format!(
                "{} (ran on for {} ms at most)",
                excuses.frozen_work, excuses.frozen_work_longest_ms
            ),
        ),
        (
            "Forgiven: lease ended in the store",
            excuses.ended_in_the_store.to_string(),
        ),
        (
            "Forgiven: a late try at the end",
            excuses.late_tries.to_string(),
        ),
        (
            "Stalls of the machine, over 20 ms",
            format!(
                "{} ({} ms at most)",
                excuses.machine_stalls, excuses.machine_stall_longest_ms
            ),
        ),
    ];
    page.push_str("<h2>Figures</h2>\n<table>\n");
    for (what, value) in rows {
        writeln!(page, "<tr><td class=\"dim\">{what}<td>{}", Text(&value))?;
    }
    page.push_str("</table>\n");
    Ok(())
}

/// Each takeover as a bar, sorted, against the goal.
#[allow(clippy::cast_precision_loss, reason = "a place in a picture")]
fn distribution(page: &mut String, what: &str, of: &Takeovers) -> fmt::Result {
    writeln!(page, "<h2>{what}</h2>")?;
    if of.count == 0 {
        page.push_str("<div class=\"dim\">none in a calm moment</div>\n");
        return Ok(());
    }
    writeln!(
        page,
        "<div>{} takeovers · p50 {:.1} ms · p99 {:.1} ms · max {:.1} ms · {} over the goal of {:.0} ms</div>",
        of.count, of.p50_ms, of.p99_ms, of.max_ms, of.over_goal, of.goal_ms
    )?;
    let (height, top) = (120.0, of.max_ms.max(of.goal_ms) * 1.05);
    let step = ((WIDTH - LEFT) / of.count as f64).min(14.0);
    writeln!(
        page,
        "<div class=\"scroll\"><svg width=\"{}\" height=\"{}\">",
        WIDTH + 12.0,
        height + 4.0
    )?;
    for (n, ms) in of.all_ms.iter().enumerate() {
        let bar = ms / top * height;
        writeln!(
            page,
            "<rect class=\"{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{ms:.1} ms</title></rect>",
            if *ms > of.goal_ms { "fault" } else { "lead" },
            LEFT + n as f64 * step,
            height - bar,
            (step - 1.5).max(0.8),
            bar.max(1.0)
        )?;
    }
    let y = height - of.goal_ms / top * height;
    writeln!(
        page,
        "<line class=\"goal\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"0\" \
         y=\"{:.1}\">goal {:.0} ms</text></svg></div>",
        y + 4.0,
        of.goal_ms
    )
}

/// Requests of all candidates, second by second.
#[allow(clippy::cast_precision_loss, reason = "a place in a picture")]
fn requests(page: &mut String, report: &Report, trial: &Trial<'_>) -> fmt::Result {
    let scale = Scale {
        from: trial.evidence.from,
        to: trial.evidence.to,
    };
    let mut seconds: BTreeMap<u64, u64> = BTreeMap::new();
    for record in &trial.evidence.records {
        if matches!(record.fact, Fact::Sent { .. }) && record.at >= scale.from {
            let second = (record.at - scale.from) / 1_000_000_000;
            *seconds.entry(second).or_default() += 1;
        }
    }
    let most = seconds.values().copied().max().unwrap_or(1);
    page.push_str("<h2>Requests to the store</h2>\n<table>\n");
    for (op, n) in &report.requests {
        writeln!(
            page,
            "<tr><td class=\"dim\">{}<td class=\"n\">{n}",
            Text(op)
        )?;
    }
    let height = 80.0;
    writeln!(
        page,
        "</table>\n<div class=\"scroll\"><svg width=\"{}\" height=\"{}\"><text x=\"0\" y=\"12\">{most} per s</text>",
        WIDTH + 12.0,
        height + 22.0
    )?;
    scale.axis(page, height)?;
    for (second, n) in seconds {
        let from = scale.from + second * 1_000_000_000;
        let bar = n as f64 / most as f64 * height;
        let says = format!("{n} requests");
        let place = (height - bar, bar);
        scale.bar(page, "lead", (from, from + 900_000_000), place, &says)?;
    }
    page.push_str("</svg></div>\n");
    Ok(())
}
