"""Drop-ins and plugins: programs and engines written for other libraries, run on HMC."""
