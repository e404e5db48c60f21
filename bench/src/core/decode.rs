//! Decode: one token for each sequence of a batch, by the cached step that the engine runs, with sampling and log-probs.

use std::path::Path;

use anyhow::Result;
use models::{KvCache, KvSeq, Model};
use serde_json::json;
use tensor::PAGE;
use tensor::ops::SampleParams;

use super::shape::{Shape, load};
use super::torch::{Torch, number};
use super::train_step::agree;
use super::{THREADS, peak};
use crate::Options;
use crate::line::Lines;
use crate::rounds::{Clock, Side, by_turns, median, rate};

const BATCHES: [usize; 3] = [1, 8, 64];

struct Decoder<'a> {
    model: &'a Model,
    cache: KvCache,
    pages: Vec<Vec<u32>>,
    context: usize,
    forced: &'a [Vec<i32>],
}

impl<'a> Decoder<'a> {
    /// Holds the keys and values of the prompts.
    fn new(model: &'a Model, prompts: &[Vec<i32>], forced: &'a [Vec<i32>]) -> Result<Self> {
        let context = prompts[0].len();
        let each = (context + forced.len()).div_ceil(PAGE);
        let cache = model.new_kv_cache(each * prompts.len())?;
        let pages = (0..prompts.len()).map(|i| (0..each).map(|p| (i * each + p) as u32).collect()).collect();
        let this = Self { model, cache, pages, context, forced };
        let layout = model.batch(&this.sequences(0, context))?;
        model.step(&prompts.concat(), &layout, &this.cache, &[0])?;
        Ok(this)
    }

    fn sequences(&self, cached: usize, new: usize) -> Vec<KvSeq<'_>> {
        self.pages.iter().map(|pages| KvSeq { cached, new, pages }).collect()
    }

    /// Feeds the forced tokens; mean log-prob of those that follow.
    fn run(&self) -> Result<f64> {
        let batch = self.pages.len();
        let rows: Vec<i32> = (0..batch as i32).collect();
        let temperatures = vec![1.0; batch];
        let mut sum = 0.0;
        for (i, step) in self.forced.windows(2).enumerate() {
            let layout = self.model.batch(&self.sequences(self.context + i, 1))?;
            let logits = self.model.step(&step[0], &layout, &self.cache, &rows)?;
            let params: Vec<SampleParams> = (0..batch)
                .map(|row| SampleParams {
                    temperature: 1.0,
                    top_k: 0,
                    top_p: 1.0,
                    min_p: 0.0,
                    seed: row as u64,
                    position: (self.context + i) as u64,
                })
                .collect();
            self.model.sample(&logits, &params)?;
            let stats = self.model.logits_stats(&logits, &step[1], &temperatures)?;
            sum += stats.iter().map(|s| f64::from(s.logp())).sum::<f64>() / batch as f64;
        }
        Ok(sum / (self.forced.len() - 1) as f64)
    }
}

/// Batches of some sizes, with each number of threads.
pub fn run(
    options: &Options,
    lines: &mut Lines,
    torch: &mut Option<Torch>,
    shape: &Shape,
    folder: &Path,
) -> Result<()> {
    if !options.wants(&format!("decode {}", shape.name)) {
        return Ok(());
    }
    let (context, steps) = shape.decode;
    if let Some(torch) = torch.as_mut() {
        torch.ask("load", json!({"folder": folder}))?;
    }
    for threads in THREADS {
        let model = load(folder, threads)?;
        if let Some(torch) = torch.as_mut() {
            torch.ask("threads", json!({"n": threads}))?;
        }
        for batch in BATCHES {
            let prompts = shape.tokens(2, batch, context);
            // One more than is fed: the last is only scored.
            let forced = shape.tokens(3, steps + 1, batch);
            let decoder = Decoder::new(&model, &prompts, &forced)?;
            if let Some(torch) = torch.as_mut() {
                torch.ask("decode_setup", json!({"prompts": prompts, "forced": forced}))?;
                agree(decoder.run()?, number(&torch.ask("decode", json!({}))?, "logp")?, "log-prob in decode")?;
            }
            let flops = shape.decode_flops(batch as f64, context as f64 + steps as f64 / 2.0) * steps as f64;
            let ours = || Clock::of(threads).seconds(|| decoder.run().map(drop));
            let mut sides: Vec<Side> =
                vec![Box::new(ours), Box::new(|| Ok(peak::seconds(flops, peak::burst(), threads)))];
            if let Some(torch) = torch.as_mut() {
                sides.push(Box::new(|| number(&torch.ask("decode", json!({}))?, "seconds")));
            }
            let spent = by_turns(options.rounds, sides)?;
            let shares: Vec<f64> = spent[0].0.iter().zip(&spent[1].0).map(|(ours, best)| best / ours).collect();
            let name = format!("{}, batch {batch}, {threads} threads", shape.name);
            let mut line = rate("decode", name, (batch * steps) as f64, "tokens/s", &spent[0]).of_peak(median(&shares));
            if let Some(theirs) = spent.get(2) {
                line = line.against("PyTorch", &spent[0], theirs);
            }
            lines
                .add(line.with("threads", threads).with("clock", Clock::of(threads).name()).with("context", context))?;
        }
    }
    Ok(())
}
