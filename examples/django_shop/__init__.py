"""A shop with Django. One transaction writes an order, its job and the stock: all of them, or none.

export DJANGO_SETTINGS_MODULE=django_shop.settings
python -m django migrate
python -m django joex executor
python -m django runserver
curl localhost:8000/orders -d customer=acme -d item=tea -d pieces=2
"""
