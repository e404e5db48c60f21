/// What a model cannot do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Nn(#[from] nn::Error),
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
    /// `config.json` is not JSON, or a field is missing or of a wrong type.
    #[error("config.json: {0}")]
    Parse(String),
    /// `config.json` asks for something this version does not compute.
    #[error("config.json: {field} = {value} is not supported: {hint}")]
    Unsupported { field: &'static str, value: String, hint: &'static str },
    /// A call does not fit the model.
    #[error("{0}")]
    Call(String),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
