pub(crate) mod codes;
pub(crate) mod openapi;
