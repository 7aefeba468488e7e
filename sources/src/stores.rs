//! Images in object stores and registries.

pub(crate) use ::objects;
pub(crate) use ::registry;

pub(crate) use crate::{object, registry_image};
