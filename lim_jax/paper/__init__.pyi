from . import algorithms as algorithms
from . import gallery as gallery
from . import outcomes as outcomes
from . import printed_figures as printed_figures
from . import simulation as simulation
from .gallery import counterexamples as counterexamples
from .outcomes import section4 as section4
from .simulation import cesaro_flow as cesaro_flow
