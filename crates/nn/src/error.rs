/// What a layer cannot do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
    /// A backward pass ran without the matching forward, or twice.
    #[error("{layer}: {what} was not saved: run forward with Saved::keep() first, and each backward once")]
    NotSaved { layer: &'static str, what: &'static str },
    /// A backward pass ran in a context without gradients.
    #[error("this context has no gradient buffer: set Cx::grads for a backward pass")]
    NoGrads,
    /// Packed layout and tokens, or pages and lengths, disagree.
    #[error("layout: {0}")]
    Layout(String),
    /// A size does not divide over the tensor-parallel ranks.
    #[error(
        "parameter {name}: dimension {dim} of {shape:?} does not divide over tp {tp}: choose a tp that divides {by}"
    )]
    Shard { name: String, dim: usize, shape: Vec<usize>, tp: usize, by: usize },
    /// The layer cannot run in this layout.
    #[error("{layer}: {what}")]
    Unsupported { layer: &'static str, what: &'static str },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
