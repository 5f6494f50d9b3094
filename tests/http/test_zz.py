from . import api_client
def test_x(): 
    print(__name__, api_client.__name__)
    import http; print(http.__file__)
    assert api_client.X == 1
