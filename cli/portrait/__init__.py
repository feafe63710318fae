"""Pictures of components, computed by calling the components themselves."""

from .draw import Ink, save
from .picture import Picture
from .sitter import portrait_of

__all__ = ["Ink", "Picture", "portrait_of", "save"]
