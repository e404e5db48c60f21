//! The reward curve as a picture: mean reward with a band of one standard deviation over steps, attempts as vertical marks.
//!
//! Drawn 400 units wide with text of 12, so it can be read at 400 pixels and scales beyond. Every colour is written for a
//! light page; a style sheet in the file replaces each where the reader prefers dark.

use control::wire::StepRecord;
use plotters::{coord::Shift, prelude::*};

const WIDTH: u32 = 400;
const HEIGHT: u32 = 300;
/// The strip on top for title and legend.
const HEAD: u32 = 46;

/// The plotter writes sizes divided by 1.24: these are 14 and 12 in the file.
const TITLE: u32 = 17;
const LABEL: u32 = 15;
/// More attempts than this are marked without their numbers.
const LABELLED: usize = 9;

/// Each colour on a light page and on a dark one.
const PAGE: Shade = Shade(RGBColor(255, 255, 255), "#0D1117");
const INK: Shade = Shade(RGBColor(31, 35, 40), "#E6EDF3");
const FAINT: Shade = Shade(RGBColor(208, 215, 222), "#30363D");
const CURVE: Shade = Shade(RGBColor(9, 105, 218), "#58A6FF");
const BAND: Shade = Shade(RGBColor(204, 225, 248), "#12305A");
const MARK: Shade = Shade(RGBColor(188, 76, 0), "#F0883E");

struct Shade(RGBColor, &'static str);

impl Shade {
    fn light(&self) -> String {
        let RGBColor(red, green, blue) = self.0;
        format!("#{red:02X}{green:02X}{blue:02X}")
    }
}

/// Draws the curve of a run called `name`; the steps are in order.
///
/// # Errors
/// What the plotter could not do.
pub fn draw(name: &str, steps: &[StepRecord]) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        let failed = |error: DrawingAreaErrorKind<_>| anyhow::anyhow!("reward.svg: {error}");
        root.fill(&PAGE.0).map_err(failed)?;
        let last = steps.last().map_or(1, |step| step.step).max(1);
        let finite = || steps.iter().filter(|step| step.reward.is_finite());
        let (low, high) =
            finite().fold((0.0_f64, 1.0_f64), |(low, high), step| (low.min(step.reward), high.max(step.reward)));
        let text = |size: u32| ("sans-serif", size).into_font().color(&INK.0);
        let marks = attempts(steps);
        let (head, body) = root.split_vertically(HEAD);
        head.draw(&Text::new(format!("{name}: mean reward by step"), (14, 8), text(TITLE))).map_err(failed)?;
        legend(&head, !marks.is_empty()).map_err(failed)?;
        let mut chart = ChartBuilder::on(&body)
            .margin(8)
            .margin_top(6)
            .margin_right(14)
            .x_label_area_size(40)
            .y_label_area_size(54)
            .build_cartesian_2d(0..last, low..high)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(6)
            .y_labels(6)
            .max_light_lines(1)
            .y_label_formatter(&|value| format!("{value:.2}"))
            .x_desc("step")
            .y_desc("mean reward")
            .axis_desc_style(text(LABEL))
            .label_style(text(LABEL))
            .axis_style(INK.0)
            .bold_line_style(FAINT.0)
            .light_line_style(PAGE.0)
            .draw()
            .map_err(failed)?;
        let edge = |sign: f64| {
            move |step: &StepRecord| {
                let spread = if step.reward_std.is_finite() { step.reward_std } else { 0.0 };
                (step.step, (step.reward + sign * spread).clamp(low, high))
            }
        };
        let mut band: Vec<(u64, f64)> = finite().map(edge(1.0)).collect();
        band.extend(finite().rev().map(edge(-1.0)));
        chart.draw_series([Polygon::new(band, BAND.0.filled())]).map_err(failed)?;
        for (place, (step, attempt)) in marks.iter().enumerate() {
            let dash = DashedLineSeries::new([(*step, low), (*step, high)], 4, 3, MARK.0.stroke_width(1));
            chart.draw_series(dash).map_err(failed)?;
            // In turn on three lines, so that neighbours stay apart; many marks speak for themselves.
            if marks.len() <= LABELLED {
                let font = ("sans-serif", LABEL).into_font().color(&MARK.0);
                let text = if place == 0 { format!("attempt {attempt}") } else { attempt.to_string() };
                let raised = (3, -15 - 13 * (place % 3) as i32);
                let label = EmptyElement::at((*step, low)) + Text::new(text, raised, font);
                chart.draw_series([label]).map_err(failed)?;
            }
        }
        let curve = finite().map(|step| (step.step, step.reward));
        chart.draw_series(LineSeries::new(curve, CURVE.0.stroke_width(2))).map_err(failed)?;
        root.present().map_err(failed)?;
    }
    Ok(with_style(&svg))
}

/// What line, band and dashes are, in one row.
fn legend<'a>(
    head: &DrawingArea<SVGBackend<'a>, Shift>,
    attempts: bool,
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
    let text = |words: &'static str, x: i32| Text::new(words, (x, 29), ("sans-serif", LABEL).into_font().color(&INK.0));
    head.draw(&PathElement::new([(14, 35), (30, 35)], CURVE.0.stroke_width(2)))?;
    head.draw(&text("mean", 35))?;
    head.draw(&Rectangle::new([(80, 30), (96, 40)], BAND.0.filled()))?;
    head.draw(&text("± one standard deviation", 101))?;
    if attempts {
        for x in [264, 271, 278] {
            head.draw(&PathElement::new([(x, 35), (x + 4, 35)], MARK.0.stroke_width(1)))?;
        }
        head.draw(&text("new attempt", 288))?;
    }
    Ok(())
}

/// Steps at which another attempt than before is at work, and its number.
fn attempts(steps: &[StepRecord]) -> Vec<(u64, u64)> {
    steps
        .windows(2)
        .filter(|pair| pair[0].attempt != pair[1].attempt)
        .map(|pair| (pair[1].step, pair[1].attempt))
        .collect()
}

/// Lets the picture scale, and follow the reader's colours.
fn with_style(svg: &str) -> String {
    let rules: String = [PAGE, INK, FAINT, CURVE, BAND, MARK]
        .iter()
        .map(|shade| {
            let (light, dark) = (shade.light(), shade.1);
            format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}")
        })
        .collect();
    let style =
        format!("<style>svg{{max-width:100%;height:auto}}@media (prefers-color-scheme:dark){{{rules}}}</style>");
    match svg.split_once('>') {
        Some((open, rest)) => format!("{open}>\n{style}{rest}"),
        None => svg.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Vec<StepRecord> {
        [(0.2, 0.4, 1), (0.35, 0.45, 1), (0.5, 0.5, 2), (0.8, 0.3, 2), (0.9, 0.2, 4)]
            .into_iter()
            .zip(0..)
            .map(|((reward, reward_std, attempt), step)| StepRecord {
                step,
                reward,
                reward_std,
                attempt,
                ..Default::default()
            })
            .collect()
    }

    #[test]
    fn the_picture_is_what_it_was() {
        insta::assert_snapshot!(draw("sort5-grpo", &steps()).unwrap());
    }

    #[test]
    fn each_new_attempt_is_marked_once_where_it_began() {
        assert_eq!(attempts(&steps()), [(2, 2), (4, 4)]);
        let svg = draw("r", &steps()).unwrap();
        assert!(svg.contains("\nattempt 2\n") && svg.contains("\n4\n"));
    }

    #[test]
    fn axes_line_band_and_marks_are_named() {
        let svg = draw("r", &steps()).unwrap();
        for words in ["step", "mean reward", "mean", "± one standard deviation", "new attempt"] {
            assert!(svg.contains(&format!("\n{words}\n")), "{words}");
        }
        assert!(!draw("r", &steps()[..2]).unwrap().contains("new attempt"), "there is none");
    }

    #[test]
    fn every_colour_in_the_picture_has_a_dark_twin() {
        let svg = draw("r", &steps()).unwrap();
        let (style, picture) = svg.split_once("</style>").unwrap();
        for attribute in ["fill=\"#", "stroke=\"#"] {
            for part in picture.split(attribute).skip(1) {
                let rule = format!("[{attribute}{}\"]", &part[..6]);
                assert!(style.contains(&rule), "{rule}");
            }
        }
    }

    #[test]
    fn a_run_of_no_step_one_step_or_no_number_still_draws() {
        let bad = StepRecord { reward: f64::NAN, reward_std: f64::NAN, step: 1, ..Default::default() };
        for steps in [vec![], steps()[..1].to_vec(), vec![steps()[0].clone(), bad]] {
            assert!(draw("r", &steps).unwrap().ends_with("</svg>\n"));
        }
    }
}
