//! `POST|PUT /generate`.

use std::{borrow::Cow, pin::Pin, sync::Arc};

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use futures::stream::{self, Stream, StreamExt};
use serde::Serialize;

use crate::{
    answer::{Answer, Facts, MetaInfo, output_text},
    front::{Front, Live},
    http::reply::Refusal,
    outcome::{Event, Finish, Logprobs, Outcome, Progress, Standing, VersionSpan},
    request::{GenerateCall, flag, object},
};

pub(crate) async fn generate(State(front): State<Arc<Front>>, body: Bytes) -> Response {
    let object = match object(&body) {
        Ok(object) => object,
        Err(refusal) => return refusal.into_response(),
    };
    let stream = match flag(&object, "stream") {
        Ok(stream) => stream,
        Err(refusal) => return refusal.into_response(),
    };
    let begun = (|| {
        front.check_open()?;
        let call = GenerateCall::parse(&object, &front.limits, front.text.as_deref())?;
        let GenerateCall { requests, batch, return_prompt_token_ids } = call;
        let lives: Vec<Live> =
            requests.into_iter().map(|request| front.submit(request, stream)).collect::<Result<_, _>>()?;
        Ok::<_, Refusal>((lives, Style { batch, return_prompt_token_ids }))
    })();
    match begun {
        Ok((lives, style)) if stream => events(front, lives, style),
        Ok((lives, style)) => whole(&front, lives, style).await.unwrap_or_else(IntoResponse::into_response),
        Err(refusal) if stream => event_stream(stream::iter([frame(&refusal.event()), Ok(Bytes::from_static(DONE))])),
        Err(refusal) => refusal.into_response(),
    }
}

#[derive(Clone, Copy)]
struct Style {
    batch: bool,
    return_prompt_token_ids: bool,
}

// ---------------------------------------------------------------------- one answer

async fn whole(front: &Front, mut lives: Vec<Live>, style: Style) -> Result<Response, Refusal> {
    let mut outcomes = Vec::with_capacity(lives.len());
    for live in &mut lives {
        outcomes.push(loop {
            if let Event::Done(outcome) = live.next().await? {
                break outcome;
            }
        });
    }
    for outcome in &outcomes {
        match &outcome.finish {
            Finish::QueueFull => return Err(Refusal::queue_full()),
            Finish::Failed(message) => return Err(Refusal::Internal(message.clone())),
            _ => {}
        }
    }
    let answers: Vec<Answer<'_>> =
        lives.iter().zip(&outcomes).map(|(live, outcome)| final_answer(front, live, outcome, style)).collect();
    let body = match (&answers[..], style.batch) {
        ([answer], false) => serde_json::to_vec(answer),
        _ => serde_json::to_vec(&answers),
    };
    let body = body.map_err(|error| Refusal::Internal(format!("the answer cannot be written: {error}")))?;
    Ok((StatusCode::OK, [(CONTENT_TYPE, "application/json")], body).into_response())
}

fn final_answer<'a>(front: &'a Front, live: &'a Live, outcome: &'a Outcome, style: Style) -> Answer<'a> {
    let text = front.text.as_deref();
    let view = View {
        ids: &outcome.output_ids,
        completion_tokens: outcome.output_ids.len(),
        standing: &outcome.standing,
        finish: Some(&outcome.finish),
        spans: Some(&outcome.spans),
        logprobs: &outcome.logprobs,
        text: output_text(
            text,
            &outcome.output_ids,
            Some(&outcome.finish),
            live.skip_special_tokens,
            live.no_stop_trim,
        )
        .into(),
    };
    view.answer(front, live, style, None)
}

/// What an answer shows of a sequence.
struct View<'a> {
    ids: &'a [u32],
    completion_tokens: usize,
    standing: &'a Standing,
    finish: Option<&'a Finish>,
    spans: Option<&'a [VersionSpan]>,
    logprobs: &'a Logprobs,
    text: Cow<'a, str>,
}

impl<'a> View<'a> {
    fn answer(self, front: &'a Front, live: &'a Live, style: Style, index: Option<usize>) -> Answer<'a> {
        let facts = Facts {
            rid: &live.rid,
            clock: &front.shared.clock,
            prompt: &live.prompt,
            completion_tokens: self.completion_tokens,
            ids: self.ids,
            standing: self.standing,
            finish: self.finish,
            spans: self.spans,
            wanted: live.logprob.as_ref(),
            logprobs: self.logprobs,
            text: front.text.as_deref(),
        };
        Answer {
            text: self.text,
            output_ids: self.ids,
            meta_info: MetaInfo::new(&facts),
            prompt_token_ids: style.return_prompt_token_ids.then_some(&live.prompt[..]),
            index,
        }
    }
}

// ---------------------------------------------------------------------- a stream of events

const DONE: &[u8] = b"data: [DONE]\n\n";
type Frame = Result<Bytes, std::convert::Infallible>;
type Frames = Pin<Box<dyn Stream<Item = Frame> + Send>>;

fn frame(event: &impl Serialize) -> Frame {
    let mut bytes = b"data: ".to_vec();
    if serde_json::to_writer(&mut bytes, event).is_err() {
        bytes.truncate(b"data: ".len());
        bytes.extend_from_slice(b"{}");
    }
    bytes.extend_from_slice(b"\n\n");
    Ok(bytes.into())
}

fn event_stream(frames: impl Stream<Item = Frame> + Send + 'static) -> Response {
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8")];
    (StatusCode::OK, headers, Body::from_stream(frames)).into_response()
}

fn events(front: Arc<Front>, lives: Vec<Live>, style: Style) -> Response {
    let each = lives.into_iter().enumerate().map(|(index, live)| -> Frames {
        let teller = Teller {
            front: front.clone(),
            live,
            style,
            index: style.batch.then_some(index),
            ids: Vec::new(),
            logprobs: Logprobs::default(),
            text: String::new(),
            over: false,
        };
        Box::pin(stream::unfold(teller, Teller::next))
    });
    event_stream(stream::select_all(each).chain(stream::iter([Ok(Bytes::from_static(DONE))])))
}

/// Tells one sequence of a stream, event by event.
struct Teller {
    front: Arc<Front>,
    live: Live,
    style: Style,
    index: Option<usize>,
    /// All output so far.
    ids: Vec<u32>,
    logprobs: Logprobs,
    /// All text told so far.
    text: String,
    over: bool,
}

impl Teller {
    async fn next(mut self) -> Option<(Frame, Self)> {
        if self.over {
            return None;
        }
        let told = self.ids.len();
        let mut event = match self.live.next().await {
            Ok(event) => event,
            Err(refusal) => {
                self.over = true;
                return Some((frame(&refusal.event()), self));
            }
        };
        // What has come meanwhile goes into the same event, so a slow reader costs no more than its own pace.
        let standing = loop {
            match event {
                Event::Progress(progress) => {
                    let standing = self.take(*progress);
                    match self.live.ready() {
                        Some(next) => event = next,
                        None => break standing,
                    }
                }
                Event::Done(outcome) => {
                    self.over = true;
                    let frame = self.finish(told, *outcome);
                    return Some((frame, self));
                }
            }
        };
        let frame = self.go_on(told, &standing);
        Some((frame, self))
    }

    fn take(&mut self, progress: Progress) -> Standing {
        self.ids.extend_from_slice(&progress.output_ids);
        let Logprobs { output, input, output_alternatives, input_alternatives } = progress.logprobs;
        self.logprobs.output.extend(output);
        self.logprobs.output_alternatives.extend(output_alternatives);
        if !input.is_empty() {
            self.logprobs.input = input;
            self.logprobs.input_alternatives = input_alternatives;
        }
        progress.standing
    }

    fn go_on(&mut self, told: usize, standing: &Standing) -> Frame {
        let text = output_text(self.front.text.as_deref(), &self.ids, None, self.live.skip_special_tokens, false);
        self.tell(told, standing, None, None, text)
    }

    fn finish(&mut self, told: usize, outcome: Outcome) -> Frame {
        self.ids = outcome.output_ids;
        self.logprobs = outcome.logprobs;
        let (skip, no_trim) = (self.live.skip_special_tokens, self.live.no_stop_trim);
        let text = output_text(self.front.text.as_deref(), &self.ids, Some(&outcome.finish), skip, no_trim);
        self.tell(told, &outcome.standing, Some(&outcome.finish), Some(&outcome.spans), text)
    }

    /// Everything so far, or what is new since `told` tokens.
    fn tell(
        &mut self,
        told: usize,
        standing: &Standing,
        finish: Option<&Finish>,
        spans: Option<&[VersionSpan]>,
        text: String,
    ) -> Frame {
        let incremental = self.front.options.incremental_streaming_output;
        let new;
        let (ids, logprobs, shown) = if incremental {
            new = Logprobs {
                output: self.logprobs.output.get(told..).unwrap_or_default().to_vec(),
                input: self.logprobs.input.clone(),
                output_alternatives: self.logprobs.output_alternatives.get(told..).unwrap_or_default().to_vec(),
                input_alternatives: self.logprobs.input_alternatives.clone(),
            };
            (&self.ids[told..], &new, text.strip_prefix(&self.text).unwrap_or_default())
        } else {
            (&self.ids[..], &self.logprobs, &text[..])
        };
        let view =
            View { ids, completion_tokens: self.ids.len(), standing, finish, spans, logprobs, text: shown.into() };
        let frame = frame(&view.answer(&self.front, &self.live, self.style, self.index));
        self.text = text;
        frame
    }
}
